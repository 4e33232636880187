// Where lines of all ranks end up, each with its rank before it: "[rank 3] ". What several ranks say alike within a
// moment is one line, "[ranks 0-7] ", where asked for; the order of each rank's lines is kept.
#pragma once

#include <deque>
#include <ostream>
#include <set>
#include <string>
#include <string_view>

namespace trireme {

class OutputSink {
 public:
  // A terminal shows live lines as such. With `gather_seconds` above 0 a line waits that long for other ranks to say
  // the same.
  OutputSink(std::ostream& stream, bool terminal, double gather_seconds = 0)
      : stream_(stream), terminal_(terminal), gather_seconds_(gather_seconds) {}
  bool terminal() const { return terminal_; }
  // `live`: the next line overwrites this one.
  void line(int rank, std::string_view text, bool live);
  // As they are, at once.
  void bytes(std::string_view bytes);
  // Writes the gathered lines that waited long enough.
  void show_gathered();
  // Writes all that is gathered, and ends a live line that is still there.
  void finish();

 private:
  struct Gathered {
    std::set<int> ranks;
    std::string text;
    double since = 0;
  };
  void gather(int rank, std::string_view text);
  void write(const std::set<int>& ranks, std::string_view text, bool live);
  void write_gathered(double until);

  std::ostream& stream_;
  bool terminal_;
  double gather_seconds_;
  bool live_ = false;
  std::deque<Gathered> gathered_;
};

}  // namespace trireme
