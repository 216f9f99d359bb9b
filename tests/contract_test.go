package tests

import (
	"context"
	"reflect"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/flashvk/flashvk/attention"
	"github.com/flashvk/flashvk/internal/vk/vktest"
	"github.com/flashvk/flashvk/pipelines/gemm"
	"github.com/flashvk/flashvk/pipelines/gmm"
	"github.com/flashvk/flashvk/pipelines/mixture"
	"github.com/flashvk/flashvk/pipelines/mlp"
	"github.com/flashvk/flashvk/pipelines/norm"
	"github.com/flashvk/flashvk/pipelines/optim"
	"github.com/flashvk/flashvk/vk"
	"github.com/flashvk/flashvk/vk/kit"
)

// A face is what a kernel package shows its users, as package kit wants it. Gradients and
// backward are nil for a kernel whose gradients are calls of itself.
type face struct {
	problem, tensors, gradients, options, plan any

	forward, backward, choose, supports, workspace any
}

// faces has a row for each kernel package that keeps the contract.
var faces = map[string]face{
	"attention": {
		attention.Problem{}, attention.Tensors{}, attention.Gradients{}, attention.Options{}, attention.Plan{},
		attention.Forward, attention.Backward, attention.Choose, attention.Supports, attention.Workspace,
	},
	"pipelines/gemm": {
		gemm.Problem{}, gemm.Tensors{}, nil, gemm.Options{}, gemm.Plan{},
		gemm.Forward, nil, gemm.Choose, gemm.Supports, gemm.Workspace,
	},
	"pipelines/gmm": {
		gmm.Problem{}, gmm.Tensors{}, gmm.Gradients{}, gmm.Options{}, gmm.Plan{},
		gmm.Forward, gmm.Backward, gmm.Choose, gmm.Supports, gmm.Workspace,
	},
	"pipelines/mixture": {
		mixture.Problem{}, mixture.Tensors{}, mixture.Gradients{}, mixture.Options{}, mixture.Plan{},
		mixture.Forward, mixture.Backward, mixture.Choose, mixture.Supports, mixture.Workspace,
	},
	"pipelines/mlp": {
		mlp.Problem{}, mlp.Tensors{}, mlp.Gradients{}, mlp.Options{}, mlp.Plan{},
		mlp.Forward, mlp.Backward, mlp.Choose, mlp.Supports, mlp.Workspace,
	},
	"pipelines/norm": {
		norm.Problem{}, norm.Tensors{}, norm.Gradients{}, norm.Options{}, norm.Plan{},
		norm.Forward, norm.Backward, norm.Choose, norm.Supports, norm.Workspace,
	},
}

// types are those that signatures have.
var (
	cmd, caps, pass = reflect.TypeFor[*vk.Cmd](), reflect.TypeFor[*vk.Caps](), reflect.TypeFor[kit.Pass]()
	failure, tensor = reflect.TypeFor[error](), reflect.TypeFor[vk.Tensor]()
)

type list = []reflect.Type

// TestContract holds the packages to package kit: the shapes of their functions, and that
// types are declared where they are imported, tensors have names, and options hold none.
func TestContract(t *testing.T) {
	for name, f := range faces {
		t.Run(name, func(t *testing.T) {
			of := reflect.TypeOf
			p, x, o, plan := of(f.problem), of(f.tensors), of(f.options), of(f.plan)
			declared(t, name, map[string]reflect.Type{"Problem": p, "Tensors": x, "Options": o, "Plan": plan})
			signature(t, f.forward, list{cmd, x, p, o}, list{failure})
			signature(t, f.choose, list{caps, p, pass, o}, list{plan, failure})
			signature(t, f.supports, list{caps, p, pass, o}, list{failure})
			signature(t, f.workspace, list{caps, p, pass, o}, list{reflect.TypeFor[int64](), failure})
			described(t, p, plan)
			named(t, x)
			kept(t, f.forward)
			if f.backward != nil {
				g := of(f.gradients)
				declared(t, name, map[string]reflect.Type{"Gradients": g})
				signature(t, f.backward, list{cmd, x, g, p, o}, list{failure})
				named(t, g)
				kept(t, f.backward)
			}
			for i := range o.NumField() {
				require.NotEqual(t, tensor, o.Field(i).Type, "%v.%s", o, o.Field(i).Name)
			}
		})
	}
}

// TestOptimizer holds optim to what of it applies: an optimizer has one pass, and a state from
// call to call, so that its tensors are given once.
func TestOptimizer(t *testing.T) {
	p, x, plan := reflect.TypeFor[optim.Problem](), reflect.TypeFor[optim.Tensors](), reflect.TypeFor[optim.Plan]()
	param, adamw := reflect.TypeFor[optim.Param](), reflect.TypeFor[*optim.AdamW]()
	declared(t, "pipelines/optim", map[string]reflect.Type{"Problem": p, "Tensors": x, "Plan": plan, "Param": param, "AdamW": adamw.Elem()})
	signature(t, optim.New, list{reflect.TypeFor[context.Context](), reflect.TypeFor[*vk.Device](), reflect.SliceOf(param), p}, list{adamw, failure})
	signature(t, (*optim.AdamW).Step, list{adamw, cmd}, list{failure})
	signature(t, optim.Choose, list{caps, p}, list{plan, failure})
	signature(t, optim.Supports, list{caps, p}, list{failure})
	described(t, p, plan)
	named(t, x)
	field, ok := param.FieldByName("Tensors")
	require.True(t, ok && field.Anonymous && field.Type == x, "the tensors of a Param are Tensors")
}

// declared wants types to have these names, in a package.
func declared(t *testing.T, name string, types map[string]reflect.Type) {
	t.Helper()
	for word, typ := range types {
		require.Equal(t, word, typ.Name())
		require.Equal(t, "github.com/flashvk/flashvk/"+name, typ.PkgPath(), "%s is declared elsewhere", word)
	}
}

// signature wants a function to be of such a type.
func signature(t *testing.T, function any, in, out list) {
	t.Helper()
	require.Equal(t, reflect.FuncOf(in, out, false), reflect.TypeOf(function))
}

// kept wants an error to stay in the Cmd: a caller who overlooks it runs nothing all the same.
func kept(t *testing.T, function any) {
	t.Helper()
	c, err := vktest.Open(t).NewCmd("overlooked")
	require.NoError(t, err)
	defer c.Close()
	call := reflect.TypeOf(function)
	in := []reflect.Value{reflect.ValueOf(c)}
	for i := 1; i < call.NumIn(); i++ {
		in = append(in, reflect.Zero(call.In(i))) // no problem, no tensors
	}
	refused := reflect.ValueOf(function).Call(in)[0].Interface()
	require.NotNil(t, refused)
	require.Equal(t, refused, c.Submit(context.Background()))
}

// described wants a problem that compares and validates, and a plan.
func described(t *testing.T, p, plan reflect.Type) {
	t.Helper()
	require.True(t, p.Comparable())
	require.True(t, p.Implements(reflect.TypeFor[interface{ Validate() error }]()), "%v has no Validate", p)
	require.True(t, plan.Implements(reflect.TypeFor[kit.Plan]()), "%v is no kit.Plan", plan)
}

// named wants a struct of tensors.
func named(t *testing.T, s reflect.Type) {
	t.Helper()
	for i := range s.NumField() {
		require.Equal(t, tensor, s.Field(i).Type, "%v.%s", s, s.Field(i).Name)
	}
}
