// Writes the lines of all ranks, each with its rank before it: "[rank 3] ". If asked to, it joins equal lines
// of several ranks within a short time to one line, "[ranks 0-7] ". The lines of each rank keep their order.
#pragma once

#include <deque>
#include <ostream>
#include <set>
#include <string>
#include <string_view>

namespace trireme {

class OutputSink {
 public:
  // A terminal redraws live lines. With `gather_seconds` above 0, a line waits that long for equal lines of
  // other ranks.
  OutputSink(std::ostream& stream, bool terminal, double gather_seconds = 0)
      : stream_(stream), terminal_(terminal), gather_seconds_(gather_seconds) {}
  bool terminal() const { return terminal_; }
  // `live`: the next line overwrites this one.
  void line(int rank, std::string_view text, bool live);
  // Writes bytes unchanged and at once.
  void bytes(std::string_view bytes);
  // Writes the gathered lines that waited long enough.
  void show_gathered();
  // Writes all gathered lines, and ends an open live line.
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
