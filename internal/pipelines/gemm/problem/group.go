package problem

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/flashvk/flashvk/dtype"
)

// A Group is a list of matrix products of different sizes that have the rest in common,
//
//	C[i] = epilogue(Alpha[i] * op(A[i]) * op(B[i]) + Beta[i] * C[i])
//
// as the documentation of Problem says. Tensors have no batch axis.
//
// A product with m = 0 or n = 0 does nothing. Such is an expert without a token. A product with k
// = 0 is an empty sum, C = epilogue(Beta * C), as in BLAS and torch._grouped_mm. So the gradient
// of the weights of an expert without a token is 0.
type Group struct {
	Products       []Product
	TransA, TransB bool
	Activation     Activation
	Residual       bool
	DType, Out     dtype.DType
}

// A Product is what the products of a group differ in.
type Product struct {
	M, N, K     int
	Alpha, Beta float64 // as in Problem
}

// Empty reports whether the product has no elements of C.
func (p Product) Empty() bool { return p.M == 0 || p.N == 0 }

// String returns the sizes as ParseGroup reads them.
func (p Product) String() string { return fmt.Sprintf("%dx%dx%d", p.M, p.N, p.K) }

// Common returns what all products have in common: a problem without sizes.
func (g Group) Common() Problem {
	return Problem{TransA: g.TransA, TransB: g.TransB, Activation: g.Activation, Residual: g.Residual, DType: g.DType, Out: g.Out}
}

// Problem returns product i as a problem of its own.
func (g Group) Problem(i int) Problem {
	p, x := g.Common(), g.Products[i]
	p.M, p.N, p.K, p.Alpha, p.Beta = x.M, x.N, x.K, x.Alpha, x.Beta
	return p
}

// FLOPs returns the operations of all products.
func (g Group) FLOPs() (flops float64) {
	for i := range g.Products {
		flops += g.Problem(i).FLOPs()
	}
	return flops
}

// Bytes returns the least memory traffic of all products.
func (g Group) Bytes() (bytes float64) {
	for i := range g.Products {
		if !g.Products[i].Empty() {
			bytes += g.Problem(i).Bytes()
		}
	}
	return bytes
}

// Sizes returns the sizes of all products, as ParseGroup reads them.
func (g Group) Sizes() string {
	words := make([]string, len(g.Products))
	for i := range g.Products {
		words[i] = g.Products[i].String()
	}
	return strings.Join(words, ",")
}

// String describes the group in a few words: the first products, and what they have in common.
func (g Group) String() string {
	const most = 4
	some, more := g, ""
	if n := len(g.Products); n > most {
		some.Products, more = g.Products[:most-1], fmt.Sprintf(" and %d more", n-most+1)
	}
	p := g.Common()
	other := func(x Product) bool { return x.Alpha != g.Products[0].Alpha || x.Beta != g.Products[0].Beta }
	if len(g.Products) > 0 && !slices.ContainsFunc(g.Products, other) {
		p.Alpha, p.Beta = g.Products[0].Alpha, g.Products[0].Beta
	}
	return "group " + some.Sizes() + more + strings.TrimPrefix(p.String(), "0x0x0")
}

// ParseGroup reads sizes of products, as in 128x512x64,7x512x64: m, n and k of each.
func ParseGroup(text string) ([]Product, error) {
	var list []Product
	for _, word := range strings.Split(text, ",") {
		var p Product
		if n, err := fmt.Sscanf(word, "%dx%dx%d", &p.M, &p.N, &p.K); err != nil || n != 3 || p.String() != word {
			return nil, fmt.Errorf("gemm: product %q of a group is not MxNxK, as in 128x512x64", word)
		}
		list = append(list, p)
	}
	return list, nil
}

// Validate returns an error that names the first value that breaks a rule.
func (g Group) Validate() error {
	for i, x := range g.Products {
		err := cmp.Or(ValidateSizes(0, Size{"m", x.M}, Size{"n", x.N}, Size{"k", x.K}), g.Problem(i).validateFactors())
		if err != nil {
			return fmt.Errorf("gemm: product %d of the group: %w", i, err)
		}
	}
	if err := g.Common().validateFormats(); err != nil {
		return fmt.Errorf("gemm: %w", err)
	}
	return nil
}
