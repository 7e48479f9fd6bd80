"""The HTTP API of docs/studio.md: what each path takes, checks, and hands to a worker."""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Annotated, Any

from fastapi import FastAPI, File, Form, HTTPException, Query, Request, UploadFile
from fastapi.concurrency import run_in_threadpool
from fastapi.exceptions import RequestValidationError
from fastapi.responses import HTMLResponse, JSONResponse, Response
from pydantic import BaseModel, ConfigDict, Field
from starlette.exceptions import HTTPException as StarletteError

import axial
from axial.errors import AxialError
from axial.studio.answers import JobAnswer
from axial.studio.catalogue import Entry, catalogue
from axial.studio.config import StudioConfig
from axial.studio.errors import RequestError, bad_request, failed, not_found
from axial.studio.jobs import Job, JobStore
from axial.studio.page import STATIC, reference, static_files
from axial.studio.runs import Runs
from axial.studio.uploads import Upload, plain_name
from axial.studio.worker import Worker
from axial.validation import shown

_SEED = (1 << 53) - 1
"""The largest whole number that a browser counts exactly."""
Pictures = Annotated[list[UploadFile], File(description="pictures, or one .npy file")]
Label = Annotated[int | None, Form(description="number of the class")]


class DrawRequest(BaseModel):
    """What to draw."""

    model_config = ConfigDict(extra="forbid")

    count: int = Field(4, ge=1, description="number of pictures")
    seed: int = Field(0, ge=0, le=_SEED, description="seed of the noise")
    temperature: float = Field(1.0, ge=0, le=1e300, allow_inf_nan=False, description="0 is argmax")
    label: int | None = Field(None, ge=0, description="class; null for each in turn")
    first: int = Field(0, ge=0, le=_SEED, description="index of the first picture of the seed")


class Studio:
    """Everything that is served: models with their workers, jobs, runs."""

    def __init__(self, config: StudioConfig) -> None:
        self.config, self.limits = config, config.limits
        self.jobs, self.runs = JobStore(config.limits), Runs(config.runs)
        self.workers = {
            entry.id: Worker(entry, config.device, config.limits)
            for entry in catalogue(config.models)
        }

    def start(self) -> None:
        """Load the models, each in the thread that owns it."""
        for worker in self.workers.values():
            worker.start()

    def stop(self) -> None:
        """End all work after the next line."""
        for worker in self.workers.values():
            worker.stop()
        for job in self.jobs.all():
            job.cancel()

    def worker(self, name: str) -> Worker:
        """That of a model."""
        if (worker := self.workers.get(name)) is None:
            raise not_found("no such model; GET /api/models lists them")
        return worker

    def entry(self, name: str) -> Entry:
        """A model that is ready."""
        entry = self.worker(name).entry
        entry.ready()
        return entry

    def answer(self, request: Request, name: str, kind: str, task: Any) -> JobAnswer:
        """Let a task become a job of a model; the answer follows it."""
        worker = self.worker(name)
        job = worker.submit(kind, task)
        self.jobs.add(job)
        wants = request.headers.get("accept", "")
        return JobAnswer(
            job,
            worker.cancel,
            stream="text/event-stream" in wants,
            values=worker.entry.ready().values,
            patience=self.limits.body_seconds,
        )

    def cancel(self, name: str) -> Job:
        """End the job of this id."""
        job = self.jobs[name]
        self.workers[job.model].cancel(job)
        return job


def application(studio: Studio) -> FastAPI:
    """The application, still without its guard."""

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        studio.start()
        yield
        studio.stop()

    app = FastAPI(
        title="axial studio",
        version=axial.__version__,
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,
        lifespan=lifespan,
    )
    app.state.studio = studio
    _add_page(app)
    _add_models(app, studio)
    _add_work(app, studio)
    _add_jobs(app, studio)
    _add_runs(app, studio)
    _add_errors(app)
    return app


def _add_page(app: FastAPI) -> None:
    @app.get("/", include_in_schema=False)
    async def page() -> Response:
        return _static("index.html")

    @app.get("/static/{name}", include_in_schema=False)
    async def static(name: str) -> Response:
        return _static(name)

    @app.get("/favicon.ico", include_in_schema=False)
    async def icon() -> Response:
        return _static("icon.svg")

    @app.get("/docs", include_in_schema=False)
    async def docs() -> Response:
        return HTMLResponse(reference(app.openapi()))


def _static(name: str) -> Response:
    found = static_files(STATIC).get(name)
    if found is None:
        raise not_found("the page has no such file")
    path, kind = found
    return Response(path.read_bytes(), media_type=kind, headers={"Cache-Control": "no-cache"})


def _add_models(app: FastAPI, studio: Studio) -> None:
    @app.get("/api", summary="The server and its limits")
    async def about() -> dict[str, Any]:
        device = studio.config.device or _device(studio)
        return {
            "name": "axial studio",
            "version": axial.__version__,
            "device": device,
            "runs": studio.runs.folder is not None,
            "limits": studio.limits.to_json(),
        }

    @app.get("/api/models", summary="All models")
    async def models() -> dict[str, Any]:
        return {"models": [worker.to_json() for worker in studio.workers.values()]}

    @app.get("/api/models/{model}", summary="One model")
    async def model(model: str) -> dict[str, Any]:
        return studio.worker(model).to_json()


def _device(studio: Studio) -> str | None:
    """Where the models are, once one is loaded."""
    return next((w.device for w in studio.workers.values() if w.device), None)


def _add_work(app: FastAPI, studio: Studio) -> None:
    limits = studio.limits

    def check(name: str, value: int, most: int) -> None:
        if not 1 <= value <= most:
            raise bad_request(f"{name} is {value}: use 1 to {most}")

    @app.post("/api/models/{model}/draw", summary="Draw pictures", response_class=Response)
    async def draw(request: Request, model: str, asked: DrawRequest | None = None) -> Any:
        asked = asked or DrawRequest.model_validate({})
        entry = studio.entry(model)
        check("count", asked.count, limits.pictures)
        from axial.studio.requests import draw_task

        return studio.answer(request, model, "draw", draw_task(entry, **asked.model_dump()))

    @app.post("/api/models/{model}/complete", summary="Complete a picture", response_class=Response)
    async def complete(
        request: Request,
        model: str,
        picture: Pictures,
        mask: Annotated[UploadFile | None, File(description="white is kept")] = None,
        keep: Annotated[int | None, Form(ge=0, description="leading rows or frames")] = None,
        keep_channels: Annotated[int | None, Form(ge=0, description="leading channels")] = None,
        count: Annotated[int, Form(ge=1)] = 4,
        seed: Annotated[int, Form(ge=0, le=_SEED)] = 0,
        temperature: Annotated[float, Form(ge=0, le=1e300, allow_inf_nan=False)] = 1.0,
        label: Label = None,
        first: Annotated[int, Form(ge=0, le=_SEED)] = 0,
        particles: Annotated[int, Form(ge=1, description="of each continuation")] = 1,
    ) -> Any:
        entry = studio.entry(model)
        check("count", count, limits.pictures)
        check("particles", particles, limits.particles)
        from axial.studio.requests import complete_task

        how: dict[str, Any] = {
            "count": count,
            "seed": seed,
            "temperature": temperature,
            "label": label,
        }
        how |= {"first": first, "particles": particles}
        files, painted = await uploads(picture), await uploads([mask] if mask else [])
        task = await run_in_threadpool(
            complete_task, entry, limits, files, painted, keep, keep_channels, **how
        )
        return studio.answer(request, model, "complete", task)

    @app.post("/api/models/{model}/bits", summary="Where the bits go", response_class=Response)
    async def bits(request: Request, model: str, picture: Pictures, label: Label = None) -> Any:
        entry = studio.entry(model)
        from axial.studio.requests import bits_task

        files = await uploads(picture)
        task = await run_in_threadpool(bits_task, entry, limits, files, label)
        return studio.answer(request, model, "bits", task)

    @app.post("/api/models/{model}/pixel", summary="One pixel", response_class=Response)
    async def pixel(
        request: Request,
        model: str,
        picture: Pictures,
        place: Annotated[str, Form(max_length=100, description="row,column")],
        label: Label = None,
    ) -> Any:
        entry = studio.entry(model)
        from axial.studio.requests import pixel_task

        files = await uploads(picture)
        task = await run_in_threadpool(pixel_task, entry, limits, files, label, place)
        return studio.answer(request, model, "pixel", task)

    @app.post("/api/models/{model}/compress", summary="Compress", response_class=Response)
    async def compress(request: Request, model: str, picture: Pictures, label: Label = None) -> Any:
        entry = studio.entry(model)
        from axial.studio.requests import compress_task

        files = await uploads(picture)
        task = await run_in_threadpool(compress_task, entry, limits, files, label)
        return studio.answer(request, model, "compress", task)

    @app.post("/api/models/{model}/decompress", summary="Restore", response_class=Response)
    async def decompress(
        request: Request, model: str, file: Annotated[UploadFile, File(description=".axl")]
    ) -> Any:
        entry = studio.entry(model)
        from axial.studio.requests import decompress_task

        (found,) = await uploads([file])
        return studio.answer(
            request, model, "decompress", decompress_task(entry, limits, found.data)
        )

    async def uploads(files: list[UploadFile]) -> list[Upload]:
        if len(files) > limits.uploads:
            raise bad_request(f"{len(files)} files were sent: use up to {limits.uploads}")
        names = [plain_name(file.filename, number) for number, file in enumerate(files)]
        return [Upload(name, await file.read()) for name, file in zip(names, files, strict=True)]


def _add_jobs(app: FastAPI, studio: Studio) -> None:
    @app.get("/api/jobs/{job}", summary="What a job is, and how far")
    async def job(job: str) -> dict[str, Any]:
        return studio.jobs[job].to_json()

    @app.delete("/api/jobs/{job}", summary="Cancel a job")
    async def cancel(job: str) -> dict[str, Any]:
        ended = studio.cancel(job)
        return {"job": ended.id, "state": ended.state}

    @app.get("/api/jobs/{job}/{name}", summary="A file of a job", response_class=Response)
    async def file(job: str, name: str) -> Response:
        from axial.studio.files import job_file

        found = studio.jobs[job]
        config = studio.worker(found.model).entry.ready()
        data, kind = await run_in_threadpool(job_file, found, name, config)
        headers = {"Cache-Control": "private, max-age=3600"}
        return Response(data, media_type=kind, headers=headers)


def _add_runs(app: FastAPI, studio: Studio) -> None:
    async def told(ask: Callable[..., Any], *args: Any) -> JSONResponse:
        from axial.studio.wire import as_json

        text = await run_in_threadpool(lambda: as_json(ask(*args)))
        return Response(text, media_type="application/json")  # type: ignore[return-value]

    @app.get("/api/runs", summary="All runs", response_class=JSONResponse)
    async def runs() -> Any:
        return await told(studio.runs.listing)

    @app.get("/api/runs/{run}", summary="Settings and samples of a run")
    async def run(run: str) -> Any:
        return await told(studio.runs.about, run)

    @app.get("/api/runs/{run}/log", summary="The log of a run, from a position on")
    async def log(run: str, after: Annotated[int, Query(ge=0, le=1 << 50)] = 0) -> Any:
        return await told(studio.runs.log, run, after)

    @app.get("/api/runs/{run}/samples/{step}.png", summary="Samples", response_class=Response)
    async def samples(run: str, step: int) -> Response:
        data = await run_in_threadpool(studio.runs.sample, run, step)
        return Response(data, media_type="image/png")

    @app.get("/api/compare", summary="Settings of runs side by side")
    async def compare(run: Annotated[list[str], Query(min_length=1, max_length=32)]) -> Any:
        return await told(studio.runs.compare, run)


def _plain(error: dict[str, Any]) -> str:
    """What is wrong with a request, in one line: pydantic's words but for the usual mistakes."""
    kind, place = error["type"], [str(part) for part in error["loc"] if part != "body"]
    if kind == "json_invalid":
        return "the body is not JSON"
    where = ".".join(place)[:100] or "the body"
    words = {
        "extra_forbidden": "is not a setting of this call; leave it out",
        "missing": "is missing",
    }
    if kind in words:
        return f"{where} {words[kind]}"
    if kind.startswith(("int_", "float_")):
        return f"{where} is {shown(error['input'])}: use a {'whole ' * (kind[0] == 'i')}number"
    return f"{where}: {error['msg']}"


def _add_errors(app: FastAPI) -> None:
    def answered(error: RequestError) -> JSONResponse:
        return JSONResponse(error.to_json(), error.status, error.headers)

    @app.exception_handler(RequestError)
    async def refused(_: Request, error: RequestError) -> JSONResponse:
        return answered(error)

    @app.exception_handler(AxialError)
    async def wrong(_: Request, error: AxialError) -> JSONResponse:
        return answered(bad_request(error))

    @app.exception_handler(RequestValidationError)
    async def invalid(_: Request, error: RequestValidationError) -> JSONResponse:
        return answered(RequestError(422, "bad_request", _plain(error.errors()[0])))

    @app.exception_handler(StarletteError)
    async def http(request: Request, error: HTTPException) -> JSONResponse:
        kinds = {404: "not_found", 405: "method", 413: "too_large"}
        kind, what = kinds.get(error.status_code, "bad_request"), request.url.path[:100]
        words = {404: f"there is no {what}", 405: f"{what} does not take {request.method}"}
        said = words.get(error.status_code, str(error.detail))
        return answered(RequestError(error.status_code, kind, said))

    @app.exception_handler(Exception)
    async def broken(_: Request, error: Exception) -> JSONResponse:
        return answered(failed(error))
