package conformance

import (
	"fmt"
	"strings"

	"github.com/flashvk/flashvk/attention"
	"github.com/flashvk/flashvk/dtype"
	"github.com/flashvk/flashvk/internal/bench/trial"
	"github.com/flashvk/flashvk/internal/call"
)

// An Entry is a problem of a kernel and a pass. Its Problem is one of flashvk selftest --problem.
type Entry = call.Fixed

// paths returns names of paths.
func paths[I fmt.Stringer](impls ...I) (names []string) {
	for _, i := range impls {
		names = append(names, i.String())
	}
	return names
}

// Table returns the entries: at least one for each function of the public packages that records a call.
func Table() []Entry {
	var list []Entry
	all := paths(attention.Impls()...)
	add := func(name, functions string, paths []string, problem string, parts ...string) *Entry {
		problem = strings.NewReplacer(parts...).Replace(problem)
		list = append(list, Entry{Name: name, Functions: functions, Paths: paths, Problem: problem})
		return &list[len(list)-1]
	}

	// Attention as in training, with features, and one row whose many keys several workgroups
	// divide.
	attends := `attention:{"Case":{"Seed":1,"Problem":{"Batch":2,"NumHeads":4,"NumKVHeads":2,"HeadDim":8,"DType":$dtype,$problem}},"Impl":"$impl"$more}`
	trained := `"SeqQ":41,"SeqKV":41,"Causal":true`
	features := `"SeqQ":20,"SeqKV":35,"Causal":true,"KeyMask":true,"Sinks":true,"Softcap":20,"Bias":{"On":true,"Rows":true,"Heads":true}`
	add("attention", "attention.Forward", all, attends, "$problem", trained, "$more", "").Own = true
	add("attention-features", "attention.Forward", all, attends, "$problem", features, "$more", "").Own = true
	add("attention-decode", "attention.Forward", all, attends, "$problem", `"SeqQ":1,"SeqKV":700`, "$more", `,"Config":$split`)
	stripes := `,"Config":{"Impl":"$impl","Subgroups":4,"RowTiles":1,"BlockN":$side,"Stripes":2,"Detour":%v}`
	add("attention-stripes", "attention.Forward", paths(attention.CoopMat2), attends, "$problem", trained, "$more", fmt.Sprintf(stripes, false)).Halves = true
	add("attention-stripes-detour", "attention.Forward", paths(attention.CoopMat2), attends, "$problem", trained, "$more", fmt.Sprintf(stripes, true)).Halves = true
	add("attention-bwd", "attention.Backward", all, attends, "$problem", trained, "$more", `,"Backward":true`).Own = true
	add("attention-bwd-features", "attention.Backward", all, attends, "$problem", features, "$more", `,"Backward":true`).Own = true
	add("attention-bwd-fused", "attention.Backward", paths(attention.CoopMat2, attention.CoopMat), attends,
		"$problem", trained, "$more", `,"Backward":true,"BackwardConfig":{"Impl":"$impl","Fused":{"Subgroups":2,"RowTiles":1,"Stream":$side},"Splits":2}`).Halves = true
	stored := `,"Backward":true,"BackwardConfig":{"Impl":"$impl","DQ":{"Subgroups":2,"RowTiles":1,"Stream":%s},"Stored":{"Subgroups":2,"RowTiles":%d,"Stream":$side},"Chunk":1}`
	windows := `"SeqQ":20,"SeqKV":35,"Causal":true,"Window":{"On":true,"Left":9},"KeyMask":true,"Sinks":true,"Bias":{"On":true,"Rows":true}`
	for i, name := range []string{"attention-bwd-stored", "attention-bwd-stored-fragments"} {
		more := []string{"$problem", trained, "$more", fmt.Sprintf(stored, []string{"$side", "$2side"}[i], i+1)}
		add(name, "attention.Backward", paths(attention.CoopMat2, attention.CoopMat), attends, more...).Halves = true
		add(name+"-features", "attention.Backward", paths(attention.CoopMat2, attention.CoopMat), attends, append([]string{"$problem", windows}, more[2:]...)...).Halves = true
	}

	data := `"Kind":"normal","Layout":"a","Seed":1`

	for _, k := range call.All() {
		for _, x := range k.Cases {
			x.Problem = fmt.Sprintf("%s:{%s,%s}", k.Name, x.Problem, data)
			list = append(list, x)
		}
	}
	return list
}

// Formats returns the formats of an entry: all, or those with kernels of their own.
func Formats(e *Entry, all bool) []dtype.DType {
	switch {
	case e.Halves && all:
		return []dtype.DType{dtype.Float16, dtype.BFloat16}
	case all:
		return []dtype.DType{dtype.Float16, dtype.BFloat16, dtype.Float32}
	case e.Own:
		return []dtype.DType{dtype.Float16, dtype.Float32}
	}
	return []dtype.DType{dtype.Float16}
}

// On returns the problem in a format on a path, for a device whose matrices have that many
// columns.
func On(e *Entry, t dtype.DType, path string, columns int) (*trial.Kernel, trial.Problem, error) {
	// Two workgroups divide the keys of a row. Each path has its own configuration for that.
	split := map[string]string{
		attention.CoopMat2.String(): fmt.Sprintf(`{"Impl":"coopmat2","Subgroups":2,"RowTiles":1,"BlockN":%d,"Splits":2}`, 2*columns),
		attention.CoopMat.String():  fmt.Sprintf(`{"Impl":"coopmat","Subgroups":2,"RowTiles":1,"BlockN":%d,"Splits":2}`, 2*columns),
		attention.Scalar.String():   `{"Impl":"scalar","Threads":64,"ThreadsX":8,"BlockM":16,"BlockN":8,"Depth":16,"ValueRows":4,"Splits":2}`,
	}[path]
	if split == "" {
		split = "null"
	}
	half := t // a format of 16 bits beside t
	if half == dtype.Float32 {
		half = dtype.Float16
	}
	text := strings.NewReplacer(
		"$half", fmt.Sprint(int(half)),
		"$dtype", fmt.Sprint(int(t)), "$impl", path, "$split", split, "$side", fmt.Sprint(columns), "$2side", fmt.Sprint(2*columns), "$4side", fmt.Sprint(4*columns),
	).Replace(e.Problem)
	return trial.Decode(text)
}
