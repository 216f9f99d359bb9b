// Package bench measures kernels on a Vulkan device and reports the results.
//
// # Protocol
//
//  1. Every implementation computes the problem once, on inputs drawn from a
//     normal distribution, into outputs filled with NaN. The result is
//     compared with the float64 reference (on sampled rows if there are many).
//     One that is wrong is reported and never timed.
//  2. Warm-up: the implementations run in turn until the device has worked for
//     some hundred milliseconds, since an idle GPU needs that long to reach
//     its clock and results before that are off by up to 5 times. A CPU device
//     has no clock to wait for and gets far less.
//  3. A sample is the mean of a batch of calls between two device timestamps,
//     recorded into one command buffer, so that the device never waits for the
//     host. A barrier between calls keeps them from overlapping, which would
//     inflate the rate. The calls rotate through several sets of buffers if one set
//     would fit a last-level cache.
//  4. The implementations take turns, sample by sample and each time in
//     another order, so that a drift of the clock hits all of them alike.
//  5. Beside some samples, the host's clock measures a call as a program sees
//     it: submit a recorded call and wait (replayed), and record, submit and
//     wait (recorded).
//  6. After the warm-up and between rounds of samples a reference kernel is
//     timed, whose time depends on the clock alone: if that drifts over the run,
//     the report says so.
//  7. The timed calls are checked again: the outputs of the last batch must
//     equal the outputs of step 1 bit by bit.
//
// The median of the samples counts; its 95 % confidence interval is given
// beside it, or the range of the samples where they are fewer than six.
//
// Each measured problem is an Op of package internal/bench/kernels. Rates count
// operations and bytes by Op.Cost; attention counts them by the conventions of
// attention.Problem.FLOPs and attention.Problem.Bytes.
package bench
