#include "trireme/train/guard_options.h"

namespace trireme {

void list_guard_options(OptionList& list, GuardOptions& o) {
  list.group(OptionGroup::watching, ResumeRule::free);
  list.choice("on_nonfinite", o.on_nonfinite,
              "a loss or gradient that is not finite: stop, or skip the step (10 in a row at most)");
  list.choice("on_spike", o.on_spike,
              "a loss that jumps: warn, stop, or rollback: once, to the last checkpoint before it, past the "
              "data since, at half the learning rate");
  list.real("spike_factor", o.spike_factor, above(1, 1e6),
            "a loss above so many times the median of the steps before is a spike");
  list.count("spike_window", o.spike_window, from_to(2, kMostSpikeWindow),
             "steps of that median; nothing is a spike before there are as many");
  list.count("spike_steps", o.spike_steps, from_to(1, kMostSpikeWindow), "steps in a row that make a spike");
}

}  // namespace trireme
