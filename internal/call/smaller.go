package call

import (
	"reflect"
	"slices"
)

// Smaller returns calls that are a step simpler, the boldest step first: no configuration, a part
// of a list, no size or half of it, one less, a feature less, plain data. Each is valid. A DType and a
// path stay.
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
	var bold, halves, less, rest []change
	walk(reflect.ValueOf(c).Elem(), nil, func(path []int, name string, f reflect.Value) {
		off := change{path, reflect.Zero(f.Type())}
		switch {
		case name == "DType" || name == "Impl" || f.IsZero():
		case f.Kind() == reflect.Slice:
			n := f.Len()
			for _, part := range [][2]int{{0, 1}, {n - 1, n}, {0, (n + 1) / 2}, {n / 2, n}, {min(1, n-1), n}} {
				bold = append(bold, change{path, f.Slice(part[0], part[1])})
			}
			for i := range f.Len() {
				x := f.Index(i)
				if x.Kind() == reflect.Int && x.Int() > 0 {
					halves = append(halves, change{path, element(f, i, reflect.ValueOf(int(x.Int()/2)))})
					less = append(less, change{path, element(f, i, reflect.ValueOf(int(x.Int()-1)))})
				}
				for j := 0; n <= 8 && j < partsOf(x); j++ {
					if y := partOf(x, j); y.Kind() == reflect.Int && y.Int() > 0 {
						halves = append(halves, change{path, element(f, i, with(x, j, reflect.ValueOf(int(y.Int()/2))))})
						less = append(less, change{path, element(f, i, with(x, j, reflect.ValueOf(int(y.Int()-1))))})
					} else if y.Kind() != reflect.Int && !y.IsZero() {
						rest = append(rest, change{path, element(f, i, with(x, j, reflect.Zero(y.Type())))})
					}
				}
			}
		case f.Kind() == reflect.Pointer || f.Kind() == reflect.String:
			bold = append(bold, off)
		case f.Kind() == reflect.Int && f.Int() > 1:
			halves = append(halves, off, change{path, reflect.ValueOf(int((f.Int() + 1) / 2)).Convert(f.Type())})
			less = append(less, change{path, reflect.ValueOf(int(f.Int() - 1)).Convert(f.Type())})
		default:
			rest = append(rest, off)
		}
	})
	for _, x := range slices.Concat(bold, halves, less, rest) {
		add(func(to Call) { reflect.ValueOf(to).Elem().FieldByIndex(x.path).Set(x.to) })
	}
	for _, change := range []func(d *Data){
		func(d *Data) { d.Kind, d.Magnitude, d.Second = NormalKind, 0, 0 },
		func(d *Data) { d.Mean, d.Equal = 0, false },
		func(d *Data) { d.Layout = "p" },
		func(d *Data) { d.Workspace = false },
	} {
		add(func(to Call) { change(to.Given()) })
	}
	return list
}

// A change sets a field.
type change struct {
	path []int
	to   reflect.Value
}

// element returns a copy of a slice with another element i.
func element(of reflect.Value, i int, x reflect.Value) reflect.Value {
	list := reflect.AppendSlice(reflect.MakeSlice(of.Type(), 0, of.Len()), of)
	list.Index(i).Set(x)
	return list
}

// partsOf returns how many fields a struct has, or elements an array; 0 of other types. PartOf returns one.
func partsOf(x reflect.Value) int {
	switch x.Kind() {
	case reflect.Struct:
		return x.NumField()
	case reflect.Array:
		return x.Len()
	}
	return 0
}

func partOf(x reflect.Value, i int) reflect.Value {
	if x.Kind() == reflect.Struct {
		return x.Field(i)
	}
	return x.Index(i)
}

// with returns a copy of a struct or an array with another part i.
func with(of reflect.Value, i int, x reflect.Value) reflect.Value {
	y := reflect.New(of.Type()).Elem()
	y.Set(of)
	partOf(y, i).Set(x)
	return y
}

// walk calls f with each field of a struct, and of structs in it, but for Data and Direction.
func walk(v reflect.Value, path []int, f func(path []int, name string, x reflect.Value)) {
	for i := range v.NumField() {
		field, at := v.Type().Field(i), append(slices.Clone(path), i)
		switch {
		case !field.IsExported() || field.Type == reflect.TypeFor[Data]() || field.Type == reflect.TypeFor[Direction]():
		case field.Type.Kind() == reflect.Struct:
			walk(v.Field(i), at, f)
		default:
			f(at, field.Name, v.Field(i))
		}
	}
}
