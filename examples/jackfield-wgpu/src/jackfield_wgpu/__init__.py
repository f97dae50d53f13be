"""The wgpu backend: any GPU that Vulkan, Metal or Direct3D 12 drives, by shaders in WGSL."""

from __future__ import annotations

import jackfield.backend as jb

from .backend import WgpuBackend

__all__ = ["WgpuBackend"]


@jb.hookimpl
def jackfield_backend() -> jb.Backend:
    return WgpuBackend()
