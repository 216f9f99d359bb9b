package tests

import (
	"context"
	"fmt"
	"go/ast"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/flashvk/flashvk/attention"
	"github.com/flashvk/flashvk/internal/call"
	"github.com/flashvk/flashvk/internal/vk/vktest"
	"github.com/flashvk/flashvk/pipelines/optim"
	"github.com/flashvk/flashvk/vk"
	"github.com/flashvk/flashvk/vk/kit"
)

// faces has the contract of each kernel package that keeps it.
func faces() map[string]call.Contract {
	all := map[string]call.Contract{
		"attention": {
			Problem: attention.Problem{Batch: 1, NumHeads: 1, NumKVHeads: 1, SeqQ: 3, SeqKV: 5, HeadDim: 8},
			Forward: attention.Forward, Backward: attention.Backward, Choose: attention.Choose, Supports: attention.Supports, Workspace: attention.Workspace,
			More: map[string]any{"Decode": attention.Decode, "Append": attention.Append, "Step": attention.Step, "Advance": attention.Advance},
		},
	}
	for _, k := range call.All() {
		if p := k.Contract.Problem; p != nil {
			all[strings.TrimPrefix(reflect.TypeOf(p).PkgPath(), "github.com/flashvk/flashvk/")] = k.Contract
		}
	}
	return all
}

// Types of signatures.
var (
	cmd, caps, pass = reflect.TypeFor[*vk.Cmd](), reflect.TypeFor[*vk.Caps](), reflect.TypeFor[kit.Pass]()
	failure, tensor = reflect.TypeFor[error](), reflect.TypeFor[vk.Tensor]()
)

type list = []reflect.Type

// TestContract checks the packages against package kit. Functions have the signatures there, types
// are declared in the package, tensors have names, and options hold no tensors. Choose, Supports
// and Workspace agree about a valid problem, and refuse an invalid pass.
func TestContract(t *testing.T) {
	device := vktest.Open(t).Caps()
	for name, f := range faces() {
		t.Run(name, func(t *testing.T) {
			forward := reflect.TypeOf(f.Forward)
			require.Equal(t, 4, forward.NumIn())
			p, x, o, plan := reflect.TypeOf(f.Problem), forward.In(1), forward.In(3), reflect.TypeOf(f.Choose).Out(0)
			declared(t, name, map[string]reflect.Type{"Problem": p, "Tensors": x, "Options": o, "Plan": plan})
			signature(t, f.Forward, list{cmd, x, p, o}, list{failure})
			signature(t, f.Choose, list{caps, p, pass, o}, list{plan, failure})
			signature(t, f.Supports, list{caps, p, pass, o}, list{failure})
			signature(t, f.Workspace, list{caps, p, pass, o}, list{reflect.TypeFor[int64](), failure})
			described(t, p, plan)
			require.True(t, p.Implements(reflect.TypeFor[fmt.Stringer]()), "%v has no String", p)
			named(t, x)
			modify(t, name, o)
			chosen(t, f, device, kit.Forward)
			kept(t, f.Forward, f.Problem)
			costs := []string{"FLOPs", "Bytes"}
			if f.Backward == nil {
				require.ErrorIs(t, supports(f, device, kit.Backward), vk.ErrUnsupported)
			} else {
				require.Equal(t, 5, reflect.TypeOf(f.Backward).NumIn())
				g := reflect.TypeOf(f.Backward).In(2)
				declared(t, name, map[string]reflect.Type{"Gradients": g})
				signature(t, f.Backward, list{cmd, x, g, p, o}, list{failure})
				named(t, g)
				chosen(t, f, device, kit.Backward)
				kept(t, f.Backward, f.Problem)
				costs = append(costs, "BackwardFLOPs", "BackwardBytes")
			}
			for _, cost := range costs {
				method, ok := p.MethodByName(cost)
				require.True(t, ok, "%v has no %s", p, cost)
				require.Equal(t, reflect.FuncOf(list{p}, list{reflect.TypeFor[float64]()}, false), method.Type)
				require.Positive(t, method.Func.Call([]reflect.Value{reflect.ValueOf(f.Problem)})[0].Float(), "%v.%s", p, cost)
			}
			for more, function := range f.More {
				t.Run(more, func(t *testing.T) { kept(t, function, f.Problem) })
			}
			none := supports(f, device, kit.Backward+1)
			require.ErrorContains(t, none, "is neither the forward nor the backward pass")
			require.NotErrorIs(t, none, vk.ErrUnsupported)
		})
	}
}

// TestFaces wants a row of call.Contracts for every package with a Forward, and in it every function that
// records into a Cmd. None of these has two tensors in a row, which a caller could swap. Those of kernels
// have fixed cases, and no others have.
func TestFaces(t *testing.T) {
	var recorders, cases []string
	composed := []string{"tnp", "record", "model"} // of kernels of other packages: their own tests check them
	for _, name := range userPackages(t) {
		kernels := name == "attention" || strings.HasPrefix(name, "pipelines/") && !slices.Contains(composed, filepath.Base(name))
		f, listed := faces()[name]
		for _, d := range parseFunctions(t, filepath.Join("..", name)) {
			function, tensors := d.Name.Name, 0
			var params []string
			for _, field := range d.Type.Params.List {
				for range max(len(field.Names), 1) {
					params = append(params, typeName(field.Type))
				}
			}
			for _, param := range params {
				if param == "vk.Tensor" {
					tensors++
				}
			}
			if kernels && len(params) > 0 && params[0] == "*vk.Cmd" {
				if d.Recv != nil {
					function = strings.TrimPrefix(typeName(d.Recv.List[0].Type), "*") + "." + function
				}
				recorders = append(recorders, filepath.Base(name)+"."+function)
			}
			if d.Recv != nil || name == "vk" {
				continue
			}
			require.Less(t, tensors, 2, "%s.%s has tensors without names", name, function)
			if len(params) == 0 || params[0] != "*vk.Cmd" {
				continue
			}
			require.True(t, listed, "%s.%s records: the package has no contract in package call", name, function)
			if function != "Forward" && function != "Backward" {
				require.Contains(t, f.More, function, "%s", name)
			}
		}
	}
	for _, k := range call.All() {
		for _, x := range k.Cases {
			cases = append(cases, strings.Fields(x.Functions)...)
		}
	}
	slices.Sort(recorders)
	slices.Sort(cases)
	require.Equal(t, recorders, slices.Compact(cases))
}

// parseFunctions returns the exported functions and methods of a package, without its tests.
func parseFunctions(t *testing.T, dir string) (list []*ast.FuncDecl) {
	t.Helper()
	for path, file := range parseFiles(t, dir) {
		if strings.HasSuffix(path, "_test.go") {
			continue
		}
		for _, d := range file.Decls {
			if f, ok := d.(*ast.FuncDecl); ok && f.Name.IsExported() {
				list = append(list, f)
			}
		}
	}
	require.NotEmpty(t, list)
	return list
}

// typeName returns the source of a type that is a name, a pointer to one, or a list of them.
func typeName(e ast.Expr) string {
	switch e := e.(type) {
	case *ast.StarExpr:
		return "*" + typeName(e.X)
	case *ast.ArrayType:
		return "[]" + typeName(e.Elt)
	case *ast.SelectorExpr:
		return fmt.Sprint(e.X, ".", e.Sel)
	}
	return fmt.Sprint(e)
}

// TestOptimizer checks the parts of the contract that apply to optim. An optimizer has one pass,
// and it gets its tensors once, since it has a state from call to call.
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

// declared wants types to have these names in a package.
func declared(t *testing.T, name string, types map[string]reflect.Type) {
	t.Helper()
	for word, typ := range types {
		require.Equal(t, word, typ.Name())
		require.Equal(t, "github.com/flashvk/flashvk/"+name, typ.PkgPath(), "%s is declared elsewhere", word)
	}
}

// signature wants a function to have this type.
func signature(t *testing.T, function any, in, out list) {
	t.Helper()
	require.Equal(t, reflect.FuncOf(in, out, false), reflect.TypeOf(function))
}

// kept wants an error to stay in the Cmd, so that a caller who overlooks it runs nothing. It calls
// the function with zero values; a list of problems has one problem.
func kept(t *testing.T, function, problem any) {
	t.Helper()
	c, err := vktest.Open(t).NewCmd("overlooked")
	require.NoError(t, err)
	defer c.Close()
	of := reflect.TypeOf(function)
	in := []reflect.Value{reflect.ValueOf(c)}
	for i := 1; i < of.NumIn(); i++ {
		x := reflect.New(of.In(i)).Elem()
		if x.Kind() == reflect.Slice {
			x = reflect.MakeSlice(x.Type(), 1, 1)
			if x.Type().Elem() == reflect.TypeOf(problem) {
				x.Index(0).Set(reflect.ValueOf(problem))
			}
		}
		in = append(in, x)
	}
	refused := reflect.ValueOf(function).Call(in)[0].Interface()
	require.NotNil(t, refused)
	require.Equal(t, refused, c.Submit(context.Background()))
}

// modify wants options without tensors at any depth, whose fields mean the same in every package.
func modify(t *testing.T, name string, o reflect.Type) {
	t.Helper()
	memory, ok := o.FieldByName("Workspace")
	require.True(t, ok && memory.Type == reflect.TypeFor[*vk.Buffer](), "%v has no Workspace", o)
	for i := range o.NumField() {
		f := o.Field(i)
		require.False(t, holds(f.Type, tensor), "%v.%s", o, f.Name)
		switch {
		case f.Name == "Tuning":
			require.Equal(t, reflect.TypeFor[*kit.Tuning](), f.Type)
		case f.Name == "Impl":
			require.True(t, f.Type.Implements(reflect.TypeFor[fmt.Stringer]()), "%v", f.Type)
		case strings.HasSuffix(f.Name, "Config") && f.Type.Kind() == reflect.Pointer:
			declared(t, name, map[string]reflect.Type{f.Name: f.Type.Elem()})
			require.True(t, f.Type.Elem().Implements(reflect.TypeFor[fmt.Stringer]()), "%v", f.Type)
		default:
			require.True(t, f.Type.Kind() != reflect.Pointer || f.Name == "Workspace", "%v.%s", o, f.Name)
		}
	}
}

// holds reports whether a type contains another one.
func holds(t, other reflect.Type) bool {
	switch {
	case t == other:
		return true
	case t.Kind() == reflect.Pointer, t.Kind() == reflect.Slice, t.Kind() == reflect.Array:
		return t.PkgPath() == "" && t.Elem() != reflect.TypeFor[vk.Buffer]() && t.Elem() != reflect.TypeFor[kit.Tuning]() && holds(t.Elem(), other)
	case t.Kind() == reflect.Struct:
		return slices.ContainsFunc(reflect.VisibleFields(t), func(f reflect.StructField) bool { return holds(f.Type, other) })
	}
	return false
}

// ask calls Choose, Supports or Workspace about the valid problem of a face, with no options.
func ask(f call.Contract, function any, device *vk.Caps, p kit.Pass) []reflect.Value {
	return reflect.ValueOf(function).Call([]reflect.Value{
		reflect.ValueOf(device), reflect.ValueOf(f.Problem), reflect.ValueOf(p), reflect.Zero(reflect.TypeOf(f.Forward).In(3)),
	})
}

func supports(f call.Contract, device *vk.Caps, p kit.Pass) error {
	err, _ := ask(f, f.Supports, device, p)[0].Interface().(error)
	return err
}

// chosen wants Choose, Supports and Workspace to agree. The device runs the problem without
// options. A device without capabilities runs none, with an error that says so.
func chosen(t *testing.T, f call.Contract, device *vk.Caps, p kit.Pass) {
	t.Helper()
	require.NoError(t, supports(f, device, p))
	plan := ask(f, f.Choose, device, p)[0].Interface().(kit.Plan)
	require.NotEmpty(t, plan.String())
	require.NotEmpty(t, plan.Kernels())
	require.Equal(t, plan.Workspace(), ask(f, f.Workspace, device, p)[0].Int())
	for _, function := range []any{f.Choose, f.Supports, f.Workspace} {
		out := ask(f, function, &vk.Caps{}, p)
		err, _ := out[len(out)-1].Interface().(error)
		require.ErrorIs(t, err, vk.ErrUnsupported)
	}
}

// described wants a problem that can be compared and validated, and a plan.
func described(t *testing.T, p, plan reflect.Type) {
	t.Helper()
	require.True(t, p.Comparable())
	require.True(t, p.Implements(reflect.TypeFor[interface{ Validate() error }]()), "%v has no Validate", p)
	require.Error(t, reflect.Zero(p).Interface().(interface{ Validate() error }).Validate(), "no sizes")
	require.True(t, plan.Implements(reflect.TypeFor[kit.Plan]()), "%v is no kit.Plan", plan)
}

// named wants a struct of tensors.
func named(t *testing.T, s reflect.Type) {
	t.Helper()
	for i := range s.NumField() {
		require.Equal(t, tensor, s.Field(i).Type, "%v.%s", s, s.Field(i).Name)
	}
}
