// The config.json of BERT-kind encoders (arXiv 1810.04805), with the defaults of transformers' BertConfig
// where the file is silent.
#pragma once

#include "trireme/model/config_keys.h"
#include "trireme/model/model_config.h"

namespace trireme {

// ConfigError: everything that changes what BertForMaskedLM computes and that is not built.
ModelConfig parse_bert_config(const ConfigKeys& keys);

}  // namespace trireme
