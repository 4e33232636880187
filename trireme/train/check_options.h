// Which options of a run can stand together. A combination that means nothing, or that cannot be done, is a
// ConfigError that says what to give instead.
#pragma once

#include "trireme/train/train_options.h"

namespace trireme {

// Also of numbers out of their range.
void check_options(const TrainOptions& options);
// A model that asks to drop activations, unless the options say not to.
void check_dropout(const TrainOptions& options, const ModelConfig& config);
// The same of an adapter's training.
void check_dropout_of_adapter(const LoraOptions& lora);
// Packed documents for an attention kernel that does not know them (--attention flash4 or cudnn on a GPU).
void check_packing(Packing packing, const EngineOptions& engine);

}  // namespace trireme
