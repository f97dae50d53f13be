set(CMAKE_CXX_COMPILER ${CMAKE_CURRENT_LIST_DIR}/zig-c++)
set(CMAKE_CXX_COMPILER_LAUNCHER "")  # a cache of objects does not see the target, which the environment tells zig
set(CMAKE_MODULE_LINKER_FLAGS_INIT -s)  # else zig's C++ library brings paths of the machine it was built on
# pybind11 would ask whether the linker optimises, for which zig builds its C++ library again; no target here wants it.
set(HAS_FLTO_THIN FALSE)
set(HAS_FLTO FALSE)
set(HAS_FLTO_AUTO FALSE)
