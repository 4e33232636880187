# The CUDA half of libtorch, and NCCL:
#
#   LibTorch::cuda    libtorch_cuda + libc10_cuda, the CUDA toolkit's headers, nccl.h, and the define USE_C10D_NCCL
#
# nvcc (13.0) on the path says where the toolkit is; no GPU is needed to build. NCCL and the libraries that
# libtorch_cuda loads (cuDNN, cuSPARSELt, NVSHMEM, ...) come from NVIDIA's wheels in one folder, else from the toolkit.
#
# Input:  TRIREME_CUDA_WHEELS   folder that holds nvidia/*/lib and nvidia/nccl/include
set(TRIREME_CUDA_WHEELS "${CMAKE_SOURCE_DIR}/.deps/cuda" CACHE PATH "Folder that holds NVIDIA's wheels")

find_package(CUDAToolkit 13.0 REQUIRED)
enable_language(CUDA)
set(CMAKE_CUDA_RUNTIME_LIBRARY Shared) # libtorch's

find_library(LibTorch_CUDA_LIBRARY torch_cuda PATHS "${_torch_lib_dir}" NO_DEFAULT_PATH REQUIRED)
find_library(LibTorch_C10_CUDA_LIBRARY c10_cuda PATHS "${_torch_lib_dir}" NO_DEFAULT_PATH REQUIRED)
find_path(NCCL_INCLUDE_DIR nccl.h
  PATHS "${TRIREME_CUDA_WHEELS}/nvidia/nccl/include" ${CUDAToolkit_INCLUDE_DIRS} NO_DEFAULT_PATH REQUIRED)
find_library(NCCL_LIBRARY NAMES nccl libnccl.so.2
  PATHS "${TRIREME_CUDA_WHEELS}/nvidia/nccl/lib" "${CUDAToolkit_LIBRARY_DIR}" NO_DEFAULT_PATH REQUIRED)

add_library(LibTorch::c10_cuda SHARED IMPORTED)
set_target_properties(LibTorch::c10_cuda PROPERTIES IMPORTED_LOCATION "${LibTorch_C10_CUDA_LIBRARY}")
add_library(LibTorch::nccl SHARED IMPORTED)
set_target_properties(LibTorch::nccl PROPERTIES
  IMPORTED_LOCATION "${NCCL_LIBRARY}"
  INTERFACE_INCLUDE_DIRECTORIES "${NCCL_INCLUDE_DIR}")
add_library(LibTorch::cuda SHARED IMPORTED)
# Nothing calls libtorch_cuda by name: its kernels register themselves when it is loaded, so it must stay linked.
# DT_RPATH, unlike DT_RUNPATH, also serves the libraries that libtorch_cuda itself needs.
set_target_properties(LibTorch::cuda PROPERTIES
  IMPORTED_LOCATION "${LibTorch_CUDA_LIBRARY}"
  INTERFACE_LINK_LIBRARIES "LibTorch::cpu;LibTorch::c10_cuda;LibTorch::nccl"
  INTERFACE_INCLUDE_DIRECTORIES "${NCCL_INCLUDE_DIR};${CUDAToolkit_INCLUDE_DIRS}"
  INTERFACE_COMPILE_DEFINITIONS "USE_C10D_NCCL"
  INTERFACE_LINK_OPTIONS "LINKER:--no-as-needed;LINKER:--disable-new-dtags")

file(GLOB _cuda_wheel_lib_dirs "${TRIREME_CUDA_WHEELS}/nvidia/*/lib")
list(APPEND LibTorch_RPATH ${_cuda_wheel_lib_dirs} "${CUDAToolkit_LIBRARY_DIR}")
