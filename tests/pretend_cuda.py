"""A CUDA device that is not there: CPU tensors that say "cuda" and refuse to meet others.

Inside `pretend_cuda` the device "cuda" exists, and computes on the CPU. Every storage remembers
where it would lie; where torch would refuse an operation on a GPU because its tensors lie on
different devices, so does this. A CUDA graph replays the operations that were captured, on the
same memory, and refuses to capture what makes the host wait. Kernels of Triton are not run.
"""

import contextlib
import functools
import threading
from types import SimpleNamespace

import torch
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef
from torch.optim import optimizer
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes
from torch.utils._pytree import tree_leaves

FAR = torch.device("cuda", 0)
NEAR = torch.device("cpu")
MEMORY = 1 << 34

aten = torch.ops.aten
MOVES = {aten.copy_.default, aten._to_copy.default, aten.set_.source_Storage_storage_offset}
"""What takes tensors of both devices."""
INDEXES = {aten.index.Tensor, aten.index_put_.default, aten._index_put_impl_.default}
INDEXES |= {aten.index_put.default}
"""What takes indices that lie on the CPU."""
WAITS = {aten._local_scalar_dense.default, aten.nonzero.default, aten.masked_select.default}
WAITS |= {aten.equal.default, aten.is_nonzero.default}
"""What makes the host wait for the device."""
_TO = ("device", "dtype", "non_blocking", "copy")
TO_HOST = {"numpy", "__array__"}
DEVICE_GETTERS = {
    Tensor.device.__get__: lambda device: device,
    Tensor.is_cuda.__get__: lambda device: device.type == "cuda",
    Tensor.is_cpu.__get__: lambda device: device.type == "cpu",
    Tensor.get_device: lambda device: -1 if device.index is None else device.index,
}


class DeviceError(RuntimeError):
    """Tensors of two devices met in one operation."""


class WaitError(RuntimeError):
    """A capture asked for what makes the host wait."""


def address(tensor):
    """Of its storage; weights that are packed for a CPU have none."""
    return None if tensor.is_mkldnn else tensor.untyped_storage()._cdata


class Places:
    """Where each storage lies; those that nobody named lie on the CPU."""

    def __init__(self):
        self.known = {}
        """By address; a weak reference keeps the address from being used again."""
        self.lock = threading.Lock()

    def of(self, tensor):
        """The device of a tensor; None if torch itself made it and either would do."""
        if tensor.device.type != "cpu":
            return tensor.device
        found = self.known.get(address(tensor))
        return found[1] if found else NEAR

    def put(self, tensor, device):
        if tensor.device.type == "cpu" and not tensor.is_mkldnn:
            storage = tensor.untyped_storage()
            with self.lock:
                self.known[storage._cdata] = StorageWeakRef(storage), device
                if len(self.known) % 4096 == 0:
                    self.known = {k: v for k, v in self.known.items() if not v[0].expired()}

    def named(self, tensor):
        return address(tensor) in self.known


places = Places()
"""Of all tests: caches of the process outlive one."""


current = threading.local()
"""The `Operations` of each thread."""
capturing = threading.Lock()


def one_hot(x, count):
    """As torch's, which looks at the values on a CPU alone."""
    return (x.unsqueeze(-1) == torch.arange(count, device=x.device)).long()


def tensors(tree):
    return [leaf for leaf in tree_leaves(tree) if isinstance(leaf, Tensor)]


class Operations(TorchDispatchMode):
    """Sees every operation, of backward passes too: where its tensors lie, where results do."""

    def __init__(self, places):
        super().__init__()
        self.places, self.ambient, self.captured = places, None, None

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        given = tensors((args, kwargs))
        place = self.check(func, given, args)
        if self.captured is not None:
            self.captured.keep(given)
        out = func(*args, **kwargs)
        known = set(map(address, given))
        for t in tensors(out):
            if address(t) not in known:
                self.places.put(t, place)
        if self.captured is not None:
            self.captured.operations.append((func, args, kwargs, out))
        return out

    def check(self, func, given, args):
        """Where results lie."""
        if not given:
            return self.ambient
        if func in INDEXES:  # indices may lie on the CPU
            moved = [args[0], *tensors(args[2:3])]
            far = [t for t in tensors(args[1]) if self.places.of(t) == FAR]
            if far and self.places.of(args[0]) == NEAR:
                raise DeviceError(f"{func}: indices on {FAR} into a tensor on the CPU")
            masks = any(t.dtype in (torch.bool, torch.uint8) for t in tensors(args[1]))
            if self.captured is not None and masks:
                raise WaitError(f"{func}: an index by a mask")
            given = moved
        places = [(self.places.of(t), t.ndim) for t in given]
        wide = {place for place, ndim in places if ndim and place is not None}
        found = {place for place, _ in places if place is not None}
        if self.captured is not None and func in WAITS and FAR in found:
            raise WaitError(str(func))
        if func in MOVES:
            if self.captured is not None and {FAR, NEAR} <= found:
                raise WaitError(f"{func} between devices")
            return self.places.of(given[0])
        if FAR in found and NEAR in wide:
            shapes = [
                (str(place), tuple(t.shape)) for (place, _), t in zip(places, given, strict=True)
            ]
            raise DeviceError(f"{func}: tensors on different devices: {shapes}")
        return FAR if FAR in found else NEAR if NEAR in found else next(iter(found), None)


class Calls(TorchFunctionMode):
    """Sees every call of torch: what names a device, asks for one, or goes to the host."""

    def __init__(self, places, operations):
        super().__init__()
        self.places, self.operations = places, operations

    def __torch_function__(self, func, types, args=(), kwargs=None):
        kwargs = dict(kwargs or {})
        name = getattr(func, "__name__", "")
        if func in DEVICE_GETTERS:
            return DEVICE_GETTERS[func](self.places.of(args[0]) or FAR)
        if name in TO_HOST and isinstance(args[0], Tensor) and self.places.of(args[0]) == FAR:
            raise TypeError(f"{name} of a tensor on {FAR}: use Tensor.cpu() first")
        if func in (Tensor.to, Tensor.cpu, Tensor.cuda):
            return self.move(func, args, kwargs)
        if func is torch.nn.functional.one_hot:
            func = one_hot
        if func is Tensor.pin_memory:
            return args[0]
        kwargs.pop("pin_memory", None)
        given = tensors((args, kwargs))
        ambient = FAR if FAR in map(self.places.of, given) else NEAR
        if (device := kwargs.get("device")) is not None:
            ambient = FAR if torch.device(device).type == "cuda" else NEAR
            kwargs["device"] = NEAR if ambient == FAR else device
        before, self.operations.ambient = self.operations.ambient, ambient
        try:
            out = func(*args, **kwargs)
        finally:
            self.operations.ambient = before
        for t in tensors(out):  # what no operation made, such as a copy of a storage
            new = device is not None or not self.places.named(t)
            if new and address(t) not in map(address, given):
                self.places.put(t, ambient)
        return out

    def move(self, func, args, kwargs):
        """To another device, or only to another type."""
        tensor = args[0]
        here = self.places.of(tensor) or FAR
        if func is Tensor.to:
            there, how = self.target(here, *args[1:], **kwargs)
        else:
            there, how = (NEAR if func is Tensor.cpu else FAR), {}
        if there.type == "meta":
            return tensor.to(there, **how)
        if there == here:
            return tensor.to(**how) if how else tensor
        if self.operations.captured is not None:
            raise WaitError(f"a move from {here} to {there}")
        out = tensor.to(**how | {"device": NEAR, "copy": True})
        self.places.put(out, there)
        return out

    def target(self, here, *args, **how):
        """The device that `Tensor.to` is asked for, and its other arguments."""
        if args and isinstance(args[0], Tensor):
            how |= {"other": args[0]}
            args = args[1:]
        elif args and isinstance(args[0], torch.dtype):
            args = (None, *args)
        names = ("non_blocking", "copy") if "other" in how else _TO
        how |= dict(zip(names, args, strict=False))
        how.pop("non_blocking", None)
        there = how.pop("device", None)
        if (other := how.pop("other", None)) is not None:
            there, how["dtype"] = self.places.of(other), other.dtype
        there = here if there is None else torch.device(there)
        return (FAR if there.type == "cuda" else there), how


class Graph:
    """`torch.cuda.CUDAGraph`: what was captured, done again on the same memory.

    What a capture computed must not show, as a GPU does not compute then.
    """

    def __init__(self):
        self.operations, self.before = [], {}

    def keep(self, given):
        """Remember what was in memory before the first operation on it."""
        for t in given:
            storage = t.untyped_storage()
            if storage._cdata not in self.before:
                self.before[storage._cdata] = storage, storage.clone()

    def end(self):
        for storage, before in self.before.values():
            storage.copy_(before)
        self.before = {}

    def replay(self):
        with torch._C.DisableTorchFunction(), _disable_current_modes(), torch.no_grad():
            for func, args, kwargs, out in self.operations:
                again = func(*args, **kwargs)
                for old, new in zip(tensors(out), tensors(again), strict=True):
                    if old.data_ptr() != new.data_ptr():
                        old.copy_(new)


@contextlib.contextmanager
def pretend_cuda(patch):
    """Make the device "cuda" exist; `patch` is pytest's monkeypatch."""

    @contextlib.contextmanager
    def entered():
        own = Operations(places)
        with own, Calls(places, own):
            yield own

    @contextlib.contextmanager
    def capture(graph, **how):
        if not capturing.acquire(blocking=False):  # to begin waits for the whole device
            raise WaitError("a capture during a capture")
        own, numbers = current.operations, torch.get_rng_state()
        own.captured = graph
        try:
            yield
        finally:
            own.captured = None
            graph.end()
            torch.set_rng_state(numbers)
            capturing.release()

    run = threading.Thread._bootstrap_inner

    def run_with_modes(self):
        with entered() as own:
            current.operations = own
            run(self)

    nothing = contextlib.nullcontext
    stream = SimpleNamespace(wait_stream=lambda other: None, synchronize=lambda: None)
    properties = SimpleNamespace(
        total_memory=MEMORY, name="pretended", multi_processor_count=1, major=9, minor=0
    )
    fakes = dict(
        is_available=lambda: True,
        device_count=lambda: 1,
        current_device=lambda: 0,
        set_device=lambda device: None,
        get_device_name=lambda device=None: "pretended",
        get_device_capability=lambda device=None: (7, 0),  # too old for our Triton kernels
        get_device_properties=lambda device=None: properties,
        mem_get_info=lambda device=None: (MEMORY, MEMORY),
        memory_reserved=lambda device=None: 0,
        memory_allocated=lambda device=None: 0,
        max_memory_allocated=lambda device=None: 0,
        reset_peak_memory_stats=lambda device=None: None,
        synchronize=lambda device=None: None,
        set_sync_debug_mode=lambda mode: None,
        empty_cache=lambda: None,
        get_rng_state=lambda device=None: torch.zeros(0),
        set_rng_state=lambda state, device=None: None,
        current_stream=lambda device=None: stream,
        Stream=lambda *args, **kwargs: stream,
        stream=lambda stream: nothing(),
        device=lambda device: nothing(),
        is_current_stream_capturing=lambda: current.operations.captured is not None,
        CUDAGraph=Graph,
        graph=capture,
    )
    for name, fake in fakes.items():
        patch.setattr(torch.cuda, name, fake)
    # A build of torch for CUDA asks the driver here, and finds none.
    patch.setattr(torch.accelerator, "current_accelerator", lambda check_available=False: None)
    autocast = torch.autocast.__init__

    @functools.wraps(autocast)
    def on_cpu(self, device_type, *args, **kwargs):
        autocast(self, "cpu" if device_type == "cuda" else device_type, *args, **kwargs)

    patch.setattr(torch.autocast, "__init__", on_cpu)
    group = optimizer._group_tensors_by_device_and_dtype

    def grouped(lists, with_indices=False):
        """Torch's optimizers move what they need to where it finds the tensors."""
        found = group(lists, with_indices)
        return {
            (places.of(next(t for t in own[0][0] if t is not None)), kind): own
            for (_, kind), own in found.items()
        }

    patch.setattr(optimizer, "_group_tensors_by_device_and_dtype", grouped)
    patch.setattr(torch.backends.cudnn, "is_acceptable", lambda tensor: False)
    patch.setattr(threading.Thread, "_bootstrap_inner", run_with_modes)
    patch.setattr(torch.nn.Module, "compile", lambda self, **options: None)
    patch.setattr(torch, "compile", lambda model, **options: model)
    with entered() as own:
        current.operations = own
        yield places
