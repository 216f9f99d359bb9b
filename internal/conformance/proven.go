package conformance

import (
	"fmt"
	"slices"
	"strings"

	"github.com/flashvk/flashvk/internal/chips"
	"github.com/flashvk/flashvk/vk"
)

// Unproven returns a line for each committed module that no record of a GPU proves as it stands,
// with the reason: none has its SPIR-V with the verdict Pass, or one has it with the verdict Fail. A
// CPU's driver runs a subgroup in lockstep and a workgroup on one core: what it passes is no proof.
func Unproven(records []*Record, committed []Module) (lines []string) {
	for _, m := range committed {
		if why := unproven(records, m); why != "" {
			lines = append(lines, m.Name+": "+why)
		}
	}
	return lines
}

// unproven returns why a module is not proven, "" if it is.
func unproven(records []*Record, want Module) string {
	var failed, older, soft []string
	proven := false
	for _, r := range records {
		m := r.module(want.Name)
		switch {
		case m == nil:
		case r.Type == vk.CPU:
			soft = append(soft, r.Device)
		case m.SHA256 != want.SHA256:
			older = append(older, r.Device)
		case m.Verdict == Fail:
			failed = append(failed, fmt.Sprintf("%v (%d of %d)", r, m.Wrong, m.Wrong+m.ran()))
		default:
			proven = true
		}
	}
	list := func(devices []string) string {
		slices.Sort(devices)
		return strings.Join(slices.Compact(devices), "; ")
	}
	switch {
	case failed != nil:
		return "failed on " + list(failed)
	case proven:
		return ""
	case older != nil:
		return "the record of " + list(older) + " has an older hash"
	case soft != nil:
		return "no record of a GPU, only of " + list(soft)
	}
	return "no record"
}

// count returns how many of the modules r has run as they stand, right and wrong.
func (r *Record) count(modules []Module) (right, wrong int) {
	for _, want := range modules {
		switch m := r.module(want.Name); {
		case m == nil || m.SHA256 != want.SHA256:
		case m.Verdict == Pass:
			right++
		default:
			wrong++
		}
	}
	return right, wrong
}

// Table returns the Markdown of the README's list of devices that have records, and of
// those that have none.
func Table(records []*Record, modules []Module) string {
	var b strings.Builder
	if len(records) == 0 {
		fmt.Fprintf(&b, "No device has a record yet: none of the %d modules is proven.\n", len(modules))
	} else {
		fmt.Fprintf(&b, "| device | driver | modules proven, of %d | wrong | random problems passed | failed |\n| --- | --- | --- | --- | --- | --- |\n", len(modules))
	}
	for _, gpu := range []bool{true, false} {
		for _, r := range records {
			if gpu == (r.Type == vk.CPU) {
				continue
			}
			right, wrong := r.count(modules)
			proven, passed, failed := fmt.Sprint(right), 0, 0
			if !gpu {
				proven = fmt.Sprintf("none: it is a CPU, on which %d are right", right)
			}
			for _, x := range r.Random {
				passed, failed = passed+x.Problems-x.Failed, failed+x.Failed
			}
			fmt.Fprintf(&b, "| %s | %s %s, Vulkan %v | %s | %d | %d | %d |\n", r.Device, r.Driver, r.DriverVersion, r.Vulkan, proven, wrong, passed, failed)
		}
	}
	fmt.Fprintf(&b, "\nNo record covers these families of GPUs: %s;\nnor any GPU of a vendor without a family here (Apple, Arm, Imagination, Qualcomm).\n", neverRun(records))
	return b.String()
}

// neverRun lists the families that no record is of, by vendor.
func neverRun(records []*Record) string {
	var vendors []string
	families := map[string][]string{}
	for _, f := range chips.Families() {
		if slices.ContainsFunc(records, func(r *Record) bool { return r.Type != vk.CPU && r.Family == f.Family }) {
			continue
		}
		if families[f.Vendor] == nil {
			vendors = append(vendors, f.Vendor)
		}
		families[f.Vendor] = append(families[f.Vendor], f.Family)
	}
	if vendors == nil {
		return "none"
	}
	for i, v := range vendors {
		vendors[i] = v + " " + strings.Join(families[v], ", ")
	}
	return strings.Join(vendors, "; ")
}
