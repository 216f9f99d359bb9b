package main

import (
	_ "embed"
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"github.com/flashvk/flashvk/internal/bench/kernels"
	"github.com/flashvk/flashvk/pipelines/tnp"
)

//go:embed commands.txt
var commandTexts string

// describe gives the commands below root the texts of commands.txt.
func describe(root *cobra.Command) {
	sections, all := map[string]kernels.Section{}, map[string]kernels.Kernel{}
	for _, s := range kernels.Sections(commandTexts) {
		sections[s.Name] = s
	}
	for _, k := range kernels.All() {
		all[k.Name] = k
	}
	for _, cmd := range allCommands(root) {
		path := strings.TrimPrefix(cmd.CommandPath(), root.Name()+" ")
		s, own := sections[path]
		k, kernel := all[cmd.Name()]
		command := strings.TrimSuffix(path, " "+k.Name)
		if !own && kernel {
			s = sections[command+" KERNEL"]
		}
		if cmd.Short != "" {
			continue // it says why there is nothing to tune
		}
		words := strings.NewReplacer(wordsOf(k, command)...)
		cmd.Short = words.Replace(s.Title)
		for _, x := range s.Parts {
			*map[string]*string{"long": &cmd.Long, "examples": &cmd.Example}[x[0]] = words.Replace(x[1])
		}
	}
}

// wordsOf returns what stands for the words with a $ in the texts of a command of a kernel.
func wordsOf(k kernels.Kernel, command string) []string {
	words := []string{"$kernel", k.Name, "$title", k.Title, "$examples", k.Example(command)}
	for _, part := range []string{"formulas", "about", "files", "tune"} {
		words = append(words, "$"+part, k.Parts[part])
	}
	backward, presets := "", ""
	if k.Backward {
		backward = fmt.Sprintf("\n  flashvk %s %s --backward --trace trace.json", command, k.Name)
	}
	for _, p := range tnp.Presets() {
		presets += fmt.Sprintf("  %-6s %6d %8d %6d %8d %5d %11d %6d %8d %8d\n", p.Name, p.Layers, p.DModel, p.Heads, p.HeadDim, p.DFF, p.Components, p.Batch, p.Context, p.Targets)
	}
	suites, first := "", ""
	if k.New != nil {
		list := k.New().Suites()
		if first = list[0].Name; len(list) > 1 {
			suites = "\n\nThe suites are"
		}
		for _, s := range list {
			if len(list) > 1 {
				suites += fmt.Sprintf("\n    %-12s %s", s.Name, s.About)
			}
		}
	}
	return append(words, "$backward", backward, "$presets", presets, "$suites", suites, "$suite", first)
}

// allCommands returns a command and those below it, in the order of help.
func allCommands(c *cobra.Command) []*cobra.Command {
	list := []*cobra.Command{c}
	for _, below := range c.Commands() {
		if below.IsAvailableCommand() {
			list = append(list, allCommands(below)...)
		}
	}
	return list
}
