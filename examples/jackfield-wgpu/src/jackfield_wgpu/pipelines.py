"""Compiled shaders of one GPU, each made once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from .shading import Access, Shader, Tensor, source

Key = tuple[Shader, tuple[Tensor, ...], tuple[Access, ...], tuple[str, ...]]
Pipeline = tuple[Any, Any]  # GPUComputePipeline, GPUBindGroupLayout


class Pipelines:
    """By shader, tensors, accesses of the bindings, and fields of the struct of numbers."""

    def __init__(self, gpu: Any) -> None:
        self.gpu = gpu
        self._pipelines: dict[Key, Pipeline] = {}
        self._layouts: dict[tuple[str, ...], Any] = {}

    def get(
        self, shader: Shader, tensors: Sequence[Tensor], accesses: Sequence[Access], fields: Sequence[str]
    ) -> Pipeline:
        key = shader, tuple(tensors), tuple(accesses), tuple(fields)
        found = self._pipelines.get(key)
        if found is None:
            found = self._pipelines[key] = self._compiled(*key)
        return found

    def _compiled(
        self, shader: Shader, tensors: tuple[Tensor, ...], accesses: tuple[Access, ...], fields: tuple[str, ...]
    ) -> Pipeline:
        module = self.gpu.create_shader_module(label=shader.stem, code=source(shader, tensors, accesses, fields))
        bindings = self._bindings(shader, accesses)
        layout = self.gpu.create_pipeline_layout(bind_group_layouts=[bindings])
        stage = {"module": module, "entry_point": "main"}
        return self.gpu.create_compute_pipeline(label=shader.stem, layout=layout, compute=stage), bindings

    def _bindings(self, shader: Shader, accesses: Sequence[Access]) -> Any:
        """The numbers; a binding for each window; then the table, and the words of a fault."""
        kinds = ["uniform", *("read-only-storage" if a == "read" else "storage" for a in accesses)]
        kinds += ["read-only-storage"] * shader.table + ["storage"] * shader.faulty
        key = tuple(kinds)
        if key not in self._layouts:
            entries = [
                {"binding": i, "visibility": "COMPUTE", "buffer": {"type": kind}} for i, kind in enumerate(kinds)
            ]
            self._layouts[key] = self.gpu.create_bind_group_layout(entries=entries)
        return self._layouts[key]
