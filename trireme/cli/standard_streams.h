// Prepares standard input, output and error as every command expects them, whoever started it.
#pragma once

namespace trireme {

// Every command calls this before anything else. A write to a reader that has gone, or to a file at its size
// limit, becomes an error of the stream and does not end the process. A closed stream becomes /dev/null: else
// a file or a connection would get its number, and receive the output for a reader.
void prepare_standard_streams();

}  // namespace trireme
