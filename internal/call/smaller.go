package call

import (
	"reflect"
	"slices"
)

// Smaller returns calls that are a step simpler, the boldest step first: no configuration, half a
// size, one less, a feature less, plain data. Each is valid. A DType and a path stay.
func Smaller(c Call) (list []Call) {
	add := func(change func(to Call)) {
		q := Copy(c)
		change(q)
		if t, ok := q.(interface{ Tidy() }); ok {
			t.Tidy()
		}
		if !reflect.DeepEqual(q, c) && q.Validate() == nil {
			list = append(list, q)
		}
	}
	set := func(path []int, x reflect.Value) {
		add(func(to Call) { reflect.ValueOf(to).Elem().FieldByIndex(path).Set(x) })
	}
	v := reflect.ValueOf(c).Elem()
	var bold, halves, less, rest [][]int
	walk(v, nil, func(path []int, name string, f reflect.Value) {
		switch {
		case name == "DType" || name == "Impl" || f.IsZero():
		case f.Kind() == reflect.Pointer || f.Kind() == reflect.String:
			bold = append(bold, path)
		case f.Kind() == reflect.Int && f.Int() > 1:
			halves, less = append(halves, path), append(less, path)
		default:
			rest = append(rest, path)
		}
	})
	for _, path := range bold {
		set(path, reflect.Zero(v.FieldByIndex(path).Type()))
	}
	for _, path := range halves {
		f := v.FieldByIndex(path)
		set(path, reflect.ValueOf(int((f.Int()+1)/2)).Convert(f.Type()))
	}
	for _, path := range less {
		f := v.FieldByIndex(path)
		set(path, reflect.ValueOf(int(f.Int()-1)).Convert(f.Type()))
	}
	for _, path := range rest {
		set(path, reflect.Zero(v.FieldByIndex(path).Type()))
	}
	c.Given().Smaller(func(d Data) { add(func(to Call) { *to.Given() = d }) })
	return list
}

// walk calls f with each field of a struct, and of structs in it, but for Data and Direction.
func walk(v reflect.Value, path []int, f func(path []int, name string, x reflect.Value)) {
	for i := range v.NumField() {
		field, at := v.Type().Field(i), append(slices.Clone(path), i)
		switch {
		case field.Type == reflect.TypeFor[Data]() || field.Type == reflect.TypeFor[Direction]():
		case field.Type.Kind() == reflect.Struct:
			walk(v.Field(i), at, f)
		default:
			f(at, field.Name, v.Field(i))
		}
	}
}

// Smaller calls f with each step to simpler data.
func (d Data) Smaller(f func(d Data)) {
	add := func(change func(e *Data)) {
		e := d
		if change(&e); e != d {
			f(e)
		}
	}
	add(func(e *Data) { e.Kind, e.Magnitude, e.Second = NormalKind, 0, 0 })
	add(func(e *Data) { e.Mean, e.Equal = 0, false })
	add(func(e *Data) { e.Layout = "p" })
	add(func(e *Data) { e.Workspace = false })
}
