// Which engine options can stand together. A combination that means nothing, or that cannot be done, is a ConfigError
// that says what to give instead.
#pragma once

#include "trireme/engine/engine_options.h"

namespace trireme {

void check_engine_options(const EngineOptions& options);

}  // namespace trireme
