// A CUDA driver without a device: of libcuda.so.1 what cuDNN asks for when it loads a kernel that it has
// compiled. Also built by tests/python/test_cudnn_plans.py.
#define GIVES_A_HANDLE(name)           \
  extern "C" int name(void** handle) { \
    *handle = handle;                  \
    return 0;                          \
  }
#define SUCCEEDS(name)    \
  extern "C" int name() { \
    return 0;             \
  }
#define HAS_NO_DEVICE(name) \
  extern "C" int name() {   \
    return 100;             \
  }  // CUDA_ERROR_NO_DEVICE

GIVES_A_HANDLE(cuLibraryLoadData)
GIVES_A_HANDLE(cuLibraryGetKernel)
SUCCEEDS(cuLibraryUnload)
SUCCEEDS(cuKernelSetAttribute)
HAS_NO_DEVICE(cuCtxGetCurrent)
HAS_NO_DEVICE(cuCtxGetDevice)
HAS_NO_DEVICE(cuCtxGetLimit)
HAS_NO_DEVICE(cuCtxPopCurrent)
HAS_NO_DEVICE(cuCtxPushCurrent)
HAS_NO_DEVICE(cuDeviceGet)
HAS_NO_DEVICE(cuDeviceGetAttribute)
HAS_NO_DEVICE(cuDeviceGetCount)
HAS_NO_DEVICE(cuDevicePrimaryCtxRelease)
HAS_NO_DEVICE(cuDevicePrimaryCtxReset)
HAS_NO_DEVICE(cuDevicePrimaryCtxRetain)
HAS_NO_DEVICE(cuDriverGetVersion)
HAS_NO_DEVICE(cuFuncGetAttribute)
HAS_NO_DEVICE(cuFuncSetAttribute)
HAS_NO_DEVICE(cuGetErrorName)
HAS_NO_DEVICE(cuGetErrorString)
HAS_NO_DEVICE(cuInit)
HAS_NO_DEVICE(cuKernelGetAttribute)
HAS_NO_DEVICE(cuLaunchCooperativeKernel)
HAS_NO_DEVICE(cuLaunchKernel)
HAS_NO_DEVICE(cuLaunchKernelEx)
HAS_NO_DEVICE(cuLibraryLoadFromFile)
HAS_NO_DEVICE(cuLinkAddData)
HAS_NO_DEVICE(cuLinkAddData_v2)
HAS_NO_DEVICE(cuLinkAddFile_v2)
HAS_NO_DEVICE(cuLinkComplete)
HAS_NO_DEVICE(cuLinkCreate)
HAS_NO_DEVICE(cuLinkCreate_v2)
HAS_NO_DEVICE(cuLinkDestroy)
HAS_NO_DEVICE(cuMemcpyDtoH_v2)
HAS_NO_DEVICE(cuModuleGetFunction)
HAS_NO_DEVICE(cuModuleGetGlobal_v2)
HAS_NO_DEVICE(cuModuleLoadData)
HAS_NO_DEVICE(cuModuleLoadDataEx)
HAS_NO_DEVICE(cuModuleLoadFatBinary)
HAS_NO_DEVICE(cuModuleUnload)
HAS_NO_DEVICE(cuOccupancyMaxActiveBlocksPerMultiprocessor)
HAS_NO_DEVICE(cuOccupancyMaxPotentialClusterSize)
HAS_NO_DEVICE(cuStreamGetCtx)
HAS_NO_DEVICE(cuStreamSynchronize)
HAS_NO_DEVICE(cuTensorMapEncodeTiled)
