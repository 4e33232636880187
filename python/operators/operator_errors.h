// As Python's errors: ValueError for what the caller can mend, DistBackendError for another rank's failure.
#pragma once

#include <utility>

#include <c10/util/Exception.h>

#include "trireme/base/error.h"

namespace trireme {

template <typename Body>
auto with_errors_of_python(Body&& body) {
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
