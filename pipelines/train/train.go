// Package train trains a model that its author writes as a forward pass.
//
//	func forward(t *train.Tape) {
//		x := t.Input("x", t.DType(), rows, in)
//		h := t.Product("up", train.Product{X: x, W: t.Weight("up.weight", in, hidden)})
//		...
//		t.Loss(loss)
//	}
//
//	params, err := train.Params(d.Caps(), forward, o)      // names and shapes, by the forward pass
//	model, err := train.NewModel(ctx, d, params, o)        // parameters, gradients, moments
//	plan, err := model.NewPlan(ctx, forward, train.Train, train.PlanOptions{})
//	for {
//		plan.Upload(ctx, "x", batch)
//		plan.Run(ctx)                                      // forward, backward and AdamW: one recording
//	}
//
// A Tape derives the backward pass: for each op, from the last to the first, the kernels of its
// gradients. It knows which tensors they read, so it keeps these or computes them again
// (Checkpoint), and it plans the memory of all others between the steps (package record). A plan of
// pass Forward has neither gradients nor tensors for them. So one function of a model serves training
// and prediction.
//
// Ops are the functions of Tape: Product and Products, Norm, Attention, Packed, GLU, Embed, Add,
// Rows, Mixture, CrossEntropy, and Op for any other kernels, with a function for each pass. Parameters are those that the
// forward pass names; products take several as one (Join). Options.Trained freezes some: they have no gradient, no moments, no float32
// copy, and no product makes a gradient by them.
//
// A parameter lies in one buffer, with others or alone, of which a kernel sees all. One that is
// larger is refused before anything is allocated. CheckFits says so for activations, too.
package train
