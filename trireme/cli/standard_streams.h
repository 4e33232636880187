// Standard input, output and errors as every command may take them for granted, whoever started it.
#pragma once

namespace trireme {

// For every command, before anything else. Writing to a reader that has gone is an error that the stream keeps, and no end
// of the process; the same for a file at its size limit. A stream that was closed becomes /dev/null: else a file, or a
// connection, would get its number, and what is meant for a reader would land there.
void prepare_standard_streams();

}  // namespace trireme
