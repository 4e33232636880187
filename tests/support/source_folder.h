// The repository's files that tests read (fixtures, sources): TRIREME_SOURCE_DIR of the environment, as the
// package sets it, or else the folder that the tests were built from, which only this file may name.
#pragma once

#include <cstdlib>
#include <filesystem>

namespace trireme::testing {

inline std::filesystem::path source_folder() {
  const char* given = std::getenv("TRIREME_SOURCE_DIR");
  return given != nullptr && *given != '\0' ? given : TRIREME_SOURCE_DIR;
}

}  // namespace trireme::testing
