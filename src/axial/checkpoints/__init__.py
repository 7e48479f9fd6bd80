"""Models and runs on disk: folders, the models that ship, the authors' TensorFlow files."""
