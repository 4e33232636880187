// What files hold of adapters, as layouts by themselves: for the readers and the loader of whole models.
#pragma once

#include "trireme/model/lora.h"
#include "trireme/model/model_layout.h"

namespace trireme {

// An adapter's own files, whose units are Adapters::units.
ModelLayout layout_of_adapter_files(const ModelLayout& layout);
// The model's files, of which only what adapters train whole is read: the same units, with the other elements left
// out.
ModelLayout layout_of_whole_parameters(const Adapters& adapters);

}  // namespace trireme
