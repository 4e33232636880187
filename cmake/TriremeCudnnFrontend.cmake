# trireme_cudnn_frontend: the headers of cudnn-frontend (nvidia-cudnn-frontend of PyPI), which build cuDNN's graphs, and of
# cuDNN and CUDA, which they include. cuDNN itself is loaded when a graph is asked for. Without these headers there is no such
# target, and --attention cudnn_packed says so.
#
# Input:  TRIREME_CUDNN_FRONTEND   folder that holds cudnn_frontend.h
set(TRIREME_CUDNN_FRONTEND "${CMAKE_SOURCE_DIR}/.deps/cudnn-frontend/include" CACHE PATH "Folder that holds cudnn_frontend.h")

find_package(CUDAToolkit 13.0 QUIET)
find_path(CUDNN_FRONTEND_INCLUDE_DIR cudnn_frontend.h PATHS "${TRIREME_CUDNN_FRONTEND}" NO_DEFAULT_PATH)
find_path(CUDNN_INCLUDE_DIR cudnn.h
  PATHS "${CMAKE_SOURCE_DIR}/.deps/cuda/nvidia/cudnn/include" ${CUDAToolkit_INCLUDE_DIRS} NO_DEFAULT_PATH)
find_library(CUDNN_LIBRARY NAMES libcudnn.so.9
  PATHS "${CMAKE_SOURCE_DIR}/.deps/cuda/nvidia/cudnn/lib" "${CUDAToolkit_LIBRARY_DIR}" NO_DEFAULT_PATH)

if(CUDAToolkit_FOUND AND CUDNN_FRONTEND_INCLUDE_DIR AND CUDNN_INCLUDE_DIR)
  add_library(trireme_cudnn_frontend INTERFACE)
  target_include_directories(trireme_cudnn_frontend SYSTEM INTERFACE
    "${CUDNN_FRONTEND_INCLUDE_DIR}" "${CUDNN_INCLUDE_DIR}" ${CUDAToolkit_INCLUDE_DIRS})
  target_compile_definitions(trireme_cudnn_frontend INTERFACE NV_CUDNN_FRONTEND_USE_DYNAMIC_LOADING)
  target_link_libraries(trireme_cudnn_frontend INTERFACE ${CMAKE_DL_LIBS})
else()
  message(STATUS "without cuDNN's graphs of segments: no cudnn-frontend, cuDNN or CUDA headers")
endif()
