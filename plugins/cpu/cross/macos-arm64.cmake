set(CMAKE_SYSTEM_NAME Darwin)
set(CMAKE_SYSTEM_PROCESSOR arm64)
include(${CMAKE_CURRENT_LIST_DIR}/zig.cmake)
# There is no SDK: headers and stubs of libraries are those of zig, and nothing is installed with a path inside.
set(CMAKE_OSX_SYSROOT "")
set(CMAKE_INSTALL_NAME_TOOL true)
set(CMAKE_SKIP_RPATH ON)
