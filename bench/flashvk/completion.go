package main

import (
	"errors"
	"regexp"
	"strconv"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/flashvk/flashvk/vk"
)

// completeFlags makes shells complete the values of the flags of cmd and of the commands below it:
// names, and devices.
func completeFlags(cmd *cobra.Command) {
	for _, c := range cmd.Commands() {
		completeFlags(c)
	}
	cmd.Flags().VisitAll(func(f *pflag.Flag) {
		names := func() []string { return nil }
		if v, ok := f.Value.(interface{ Names() []string }); ok {
			names = v.Names
		}
		if f.Name == "device" {
			names = deviceNumbers
		} else if len(names()) == 0 {
			return
		}
		complete := func(_ *cobra.Command, _ []string, typed string) ([]cobra.Completion, cobra.ShellCompDirective) {
			before := typed[:strings.LastIndex(typed, ",")+1] // of a list
			var list []cobra.Completion
			for _, name := range names() {
				list = append(list, before+name)
			}
			return list, cobra.ShellCompDirectiveNoFileComp
		}
		if err := cmd.RegisterFlagCompletionFunc(f.Name, complete); err != nil {
			panic("flashvk: a flag has two completions")
		}
	})
}

// deviceNumbers returns the numbers of the devices with their names; none where there is no Vulkan.
func deviceNumbers() []string {
	devices, err := vk.List()
	if err != nil {
		return nil
	}
	var list []string
	for _, d := range devices {
		list = append(list, strconv.Itoa(d.Index)+"\t"+d.Name)
	}
	return list
}

// strconvError matches pflag's errors about numbers, which have words of strconv.
var strconvError = regexp.MustCompile(`strconv\.Parse(Int|Uint|Float): parsing "(?:[^"\\]|\\.)*": .*`)

// flagError is the error of a wrong flag. It names flags that are spelt like an unknown one.
func flagError(cmd *cobra.Command, err error) error {
	text := strconvError.ReplaceAllString(err.Error(), "not a number, or out of range")
	unknown, found := strings.CutPrefix(text, "unknown flag: --")
	flags := &cobra.Command{SuggestionsMinimumDistance: 2} // cobra compares the names of commands
	cmd.Flags().VisitAll(func(f *pflag.Flag) {
		flags.AddCommand(&cobra.Command{Use: f.Name, Run: func(*cobra.Command, []string) {}})
	})
	if near := flags.SuggestionsFor(unknown); found && len(near) > 0 {
		text += "; do you mean --" + strings.Join(near, " or --") + "?"
	}
	return errors.New(text)
}
