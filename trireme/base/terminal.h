// Properties of the terminal to which output goes.
#pragma once

namespace trireme {

// The current columns of the terminal at `descriptor`: its window size, else COLUMNS. 0: `descriptor` is no
// terminal, or its width is unknown (pseudo-terminals of mpirun), so lines on it cannot be redrawn.
int terminal_columns(int descriptor);

}  // namespace trireme
