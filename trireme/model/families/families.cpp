// The registry: a family is declared and listed here.
#include "trireme/model/model_family.h"

namespace trireme {

const ModelFamily& llama_family();
const ModelFamily& bert_family();

const ModelFamilies& model_families() {
  static const ModelFamilies families{&llama_family(), &bert_family()};
  return families;
}

}  // namespace trireme
