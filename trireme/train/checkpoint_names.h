// The names of a checkpoint's folder and of its files. The weights' index: base/safetensors.h.
#pragma once

namespace trireme {

inline constexpr const char* kStepPrefix = "step-";            // and the step: the folder
inline constexpr const char* kAbandonedPrefix = "abandoned-";  // before that, where the run went back
inline constexpr const char* kManifestFile = "manifest.json";
inline constexpr const char* kTrainerStateFile = "trainer_state.json";

}  // namespace trireme
