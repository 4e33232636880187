// The terminal that output may go to.
#pragma once

namespace trireme {

// Columns of the terminal behind `descriptor`, now: by its window size, else by COLUMNS. 0: it is no terminal, or nobody
// knows its width (the pseudo-terminals that mpirun makes), so that no line on it can be redrawn.
int terminal_columns(int descriptor);

}  // namespace trireme
