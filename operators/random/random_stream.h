// Which random numbers a run of an operator draws: those of its attribute `seed`, or, with the input Seed, which counts
// the runs, others in each run, and the same ones when the runs are repeated.
#pragma once

#include <string>

#include "framework/op_registry.h"
#include "framework/operator.h"
#include "operators/math/philox.h"

namespace headrace::ops {

// Declare the input and the attribute; `what` the operator draws, in the plural. A gradient operator may have the
// attribute alone.
OpRegistrar&& SeedInput(OpRegistrar&& op);
OpRegistrar&& SeedAttr(OpRegistrar&& op, const std::string& what);

// Checks the input, if there is one.
void CheckSeed(const InferShapeContext& ctx);

// The stream of this run: that of `seed`, or of a fresh one from the operating system if it is 0; with the input, one
// of its own for each of its values, also for a `seed` of 0.
PhiloxStream StreamOfRun(const ExecutionContext& ctx);

}  // namespace headrace::ops
