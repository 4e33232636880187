// What every operator does beside its work: it runs on its tensors' device, for torch sets none for operators of
// others and kernels start on the current one; and errors become Python's: ValueError for what the caller can mend,
// DistBackendError for another rank's failure.
#pragma once

#include <ATen/ATen.h>
#include <c10/core/DeviceGuard.h>
#include <c10/util/Exception.h>

#include "trireme/base/error.h"

namespace trireme {

// `tensor`: one of the operator's.
template <typename Body>
auto call_operator(const at::Tensor& tensor, Body&& body) {
  const c10::DeviceGuard on_its_device(tensor.device());
  try {
    return body();
  } catch (const CommError& error) {
    C10_THROW_ERROR(DistBackendError, error.what());
  } catch (const InternalError& error) {
    C10_THROW_ERROR(Error, error.what());
  } catch (const Error& error) {
    C10_THROW_ERROR(ValueError, error.what());
  }
}

}  // namespace trireme
