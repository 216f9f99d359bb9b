// Package guard runs a call on tensors whose surroundings it watches: the engine of
// every test of a kernel, and of flashvk selftest.
//
// Each tensor is a strided view of a larger memory, which holds something else all around
// and between its rows,
//
//	         offset                row stride
//	       ┌────────┬─────────┬──┬─────────┬──┬─────────┬───────────┐
//	input  │ NaN,Inf│ row 0   │≈≈│ row 1   │≈≈│ row 2   │ NaN, Inf  │   run 1
//	       │ ±28672 │ row 0   │≈≈│ row 1   │≈≈│ row 2   │ ±28672    │   run 2
//	       ├────────┼─────────┼──┼─────────┼──┼─────────┼───────────┤
//	output │ NaN    │ NaN     │≈≈│ NaN     │≈≈│ NaN     │ NaN       │   before run 1
//	       │ -12288 │ -12288  │≈≈│ -12288  │≈≈│ -12288  │ -12288    │   before run 2
//	       └────────┴─────────┴──┴─────────┴──┴─────────┴───────────┘
//
// and these are the checks, in this order:
//
//	watch    inputs unchanged              one scaled in place, a swapped output
//	watch    nothing written beside        a store past the end or the row, a wrong stride
//	         the elements of outputs
//	compare  no NaN left                   elements not written; a tail that reads beyond an input
//	compare  infinities where wanted       rows that see nothing, overflow
//	compare  worst error within its bound  everything else
//	Equal    a second run, amid other      races, stale memory, a maximum that garbage wins
//	         values, equal bit by bit
//
// A Case is a call on a device with what its outputs should be, and Check makes all of these
// checks of it.
//
// The program links the package, so that nothing in it imports package testing.
package guard
