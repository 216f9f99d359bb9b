package main

import (
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/pflag"

	"github.com/flashvk/flashvk/attention"
	"github.com/flashvk/flashvk/internal/bench"
	"github.com/flashvk/flashvk/internal/bench/kernels"
	"github.com/flashvk/flashvk/internal/enum"
)

// A value is a flag whose text is read by a parser.
type value[T any] = kernels.Value[T]

func parseImpl(text string) (attention.Impl, error) {
	i, err := attention.ParseImpl(text)
	if err != nil {
		k, _ := kernels.Find("attention")
		return 0, enum.NotOneOf(k.Impls)
	}
	return i, nil
}

// implNames lists the paths of attention.
func implNames() string {
	k, _ := kernels.Find("attention")
	return strings.Join(k.Impls, ", ")
}

func intVar(f *pflag.FlagSet, p *int, name, usage string) { kernels.IntVar(f, p, name, usage) }

// formatVar adds --format, whose value is one of some formats.
func formatVar(f *pflag.FlagSet, p *bench.Format, formats []bench.Format, usage string) {
	parse := func(text string) (bench.Format, error) {
		if !slices.Contains(formats, bench.Format(text)) {
			var names enum.NotOneOf
			for _, x := range formats {
				names = append(names, string(x))
			}
			return "", names
		}
		return bench.Format(text), nil
	}
	f.Var(value[bench.Format]{Target: p, Parse: parse, Kind: "FORMAT"}, "format", usage)
}

// wideVar adds the flag for tables of any width.
func wideVar(f *pflag.FlagSet, p *bool) {
	kernels.BoolVar(f, p, "wide", fmt.Sprintf("a table with all columns, however wide; else at most %d wide", bench.TerminalWidth))
}

// implsVar adds a flag for a comma list of the paths of k.
func implsVar(f *pflag.FlagSet, to *[]string, k kernels.Kernel, otherwise string) {
	f.Var(value[[]string]{Target: to, Parse: kernels.ListOf(kernels.OneOf(k.Impls)), Kind: "PATHS"}, "impl", "paths, a comma list of "+strings.Join(k.Impls, ", ")+" ("+otherwise+")")
}

// implVar adds a flag for one path of k.
func implVar(f *pflag.FlagSet, to *string, k kernels.Kernel, usage string) {
	f.Var(value[string]{Target: to, Parse: kernels.OneOf(k.Impls), Kind: "PATH"}, "impl", usage+": "+strings.Join(k.Impls, ", ")+" (default auto)")
}
