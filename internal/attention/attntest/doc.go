// Package attntest is the test suite of attention implementations: the cases,
// and every check that a result must pass. An implementation is a Forwarder of
// a few lines.
//
//	s := attntest.NewSuite(attntest.Short, attntest.Reference, attntest.TwicePlain)
//	s.TestForward(t, kernel)
//
// The backward pass has its own, of the same cases and more, for a Backwarder:
//
//	s := attntest.NewBackwardSuite(attntest.Short, attntest.BackwardReference, attntest.PlainGradients)
//	s.TestBackward(t, kernel)
//
// The suite owns memory layout. Each tensor is a strided view of a backing slice
// that the suite has filled with something else all around and between its
// rows:
//
//	         offset                row stride
//	       ┌────────┬─────────┬──┬─────────┬──┬─────────┬──────────────┐
//	Q,K,V  │ NaN,Inf│ row 0   │≈≈│ row 1   │≈≈│ row 2   │ NaN, Inf     │   run 1
//	       │ ±28672 │ row 0   │≈≈│ row 1   │≈≈│ row 2   │ ±28672       │   run 2
//	       ├────────┼─────────┼──┼─────────┼──┼─────────┼──────────────┤
//	O,LSE  │ NaN    │ NaN     │≈≈│ NaN     │≈≈│ NaN     │ NaN          │   before run 1
//	       │ -12288 │ -12288  │≈≈│ -12288  │≈≈│ -12288  │ -12288       │   before run 2
//	       └────────┴─────────┴──┴─────────┴──┴─────────┴──────────────┘
//	         canary   result        result        canary: must not change
//
// Keys and values that features hide from every row hold the garbage too, and
// rows of O and LSE that are in no packed sequence are canary.
//
// What each step of Suite.Check catches, in order:
//
//	inputs unchanged            Q scaled in place, a swapped output
//	canaries intact             a store past the end, a head_dim tail, a wrong stride
//	no NaN left                 rows or tiles not written; a tail that reads beyond K or V
//	infinities, empty rows      rows that see no key
//	worst error, with index     everything else
//	second run bit-equal        races, stale memory, a maximum that garbage wins
//
// For the backward pass O, LSE and dO are inputs and the gradients outputs, each of
// which lies differently from the tensor that it is the gradient of.
//
// Cases and BackwardCases document what the cases vary and what was left out; package
// ref derives the tolerances.
package attntest
