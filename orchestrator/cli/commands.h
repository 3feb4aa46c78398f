#pragma once

#include "orchestrator/cli/arguments.h"
#include "orchestrator/cli/interrupt.h"

namespace tandem::cli {

// One function a command. Each prints its result on stdout, as text or, with --json, as one object.
// @return the exit code  @throws Error

int run_validate(const Arguments& arguments);
int run_show(const Arguments& arguments);
int run_plan(const Arguments& arguments, const Interrupts& interrupts);
int run_lock(const Arguments& arguments, const Interrupts& interrupts);

int run_up(const Arguments& arguments, const Interrupts& interrupts);
int run_link(const Arguments& arguments, const Interrupts& interrupts);
int run_status(const Arguments& arguments);
int run_logs(const Arguments& arguments, const Interrupts& interrupts);
int run_down(const Arguments& arguments);

int run_fetch(const Arguments& arguments, const Interrupts& interrupts);
int run_split(const Arguments& arguments, const Interrupts& interrupts);
int run_mirror(const Arguments& arguments, const Interrupts& interrupts);
int run_cache(const Arguments& arguments);

int run_version(const Arguments& arguments);
/// `tandem node serve|supervise|probe`. Leaves signals alone: a helper ends with its controller's stream.
int run_node(const Arguments& arguments);

}  // namespace tandem::cli
