// Package attntest is the test suite of attention implementations: the cases, and every check
// that a result must pass. An implementation is a Forwarder of a few lines.
//
//	s := attntest.NewSuite(attntest.Short, attntest.Reference, attntest.TwicePlain)
//	attntest.TestForward(t, s, kernel)
//
// The backward pass has its own suite, with the same cases and more, for a Backwarder:
//
//	s := attntest.NewBackwardSuite(attntest.Short, attntest.BackwardReference, attntest.PlainGradients)
//	attntest.TestBackward(t, s, kernel)
//
// Package guard makes the checks. It finds an implementation that changes an input, writes beside
// an output, leaves elements of an output, or reads memory that is no input. The suite lays the
// tensors out for it, and adds checks of attention:
//
//	keys and values that features hide from every row hold garbage, other in the second run
//	rows of O and LSE that are in no packed sequence may not be written
//	rows that see no key are exactly 0, and so are gradients of what is hidden
//
// In the backward pass O, LSE and dO are inputs and the gradients outputs. Each gradient lies
// differently from its tensor.
//
// Cases and BackwardCases document what the cases vary and what was left out. Package ref derives
// the tolerances.
package attntest
