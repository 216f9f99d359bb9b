// Package conformance reads and merges the records of what passed on which device. A record says for
// each SPIR-V module, by its hash, how many cases and random problems ran it, and whether all were
// right.
//
//	flashvk selftest --record conformance/   makes a Record on a device and merges it into its file
//	conformance/*.json                       the records, committed; README.md there says what the fields are
//	tools/proven                             Unproven: the modules that no GPU's record proves as they stand
//	README.md of the repository              Table, which TestReadme keeps true
//
// A kernel is proven by its SPIR-V, not by its source or its name: what ran is what is
// committed, but for the names and the debug information that no driver looks at, or it counts
// for nothing.
package conformance

import (
	"cmp"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/flashvk/flashvk/internal/chips"
	"github.com/flashvk/flashvk/internal/spirv"
	"github.com/flashvk/flashvk/shaders"
	"github.com/flashvk/flashvk/vk"
)

// A Record is what passed on one device with one driver. Modules are sorted by name,
// Random by kernel and seed.
type Record struct {
	Device        string        `json:"device"`
	Type          vk.DeviceType `json:"type"`
	VendorID      ID            `json:"vendor_id"`
	DeviceID      ID            `json:"device_id"`
	Driver        string        `json:"driver"`
	DriverVersion string        `json:"driver_version"`
	Vulkan        vk.Version    `json:"vulkan"`
	Family        string        `json:"family,omitempty"` // of package chips
	Modules       []Module      `json:"modules"`
	Random        []Random      `json:"random"`
}

// A Verdict says whether all that ran a module was right.
type Verdict string

// The verdicts.
const (
	Pass Verdict = "pass"
	Fail Verdict = "fail"
)

// A Module is what ran a SPIR-V module.
type Module struct {
	Name    string         `json:"name"`
	SHA256  string         `json:"sha256"` // spirv.Hash of the SPIR-V
	Verdict Verdict        `json:"verdict"`
	Commit  string         `json:"commit,omitempty"` // of the program that first ran this SPIR-V
	Fixed   int            `json:"fixed,omitempty"`  // cases of fixed suites that were right
	Random  map[string]int `json:"random,omitempty"` // random problems that were right, by kernel
	Wrong   int            `json:"wrong,omitempty"`  // cases and problems
	Since   *Module        `json:"since,omitempty"`  // of one that is wrong: what was right in runs of other commits after it
}

// Random is a run of random problems of one kernel.
type Random struct {
	Kernel   string `json:"kernel"`
	Seed     uint64 `json:"seed"`
	Commit   string `json:"commit,omitempty"` // of the program
	Problems int    `json:"problems"`         // checked, right or wrong
	Failed   int    `json:"failed,omitempty"` // the wrong ones
}

// An ID is a PCI id, written in hexadecimal.
type ID uint32

// MarshalText returns the form 0x10de.
func (id ID) MarshalText() ([]byte, error) { return fmt.Appendf(nil, "%#04x", uint32(id)), nil }

// UnmarshalText parses what MarshalText wrote.
func (id *ID) UnmarshalText(text []byte) error {
	n, err := strconv.ParseUint(string(text), 0, 32)
	*id = ID(n)
	return err
}

// New returns a Record of a device in which nothing has run.
func New(caps *vk.Caps) *Record {
	return &Record{
		Device: caps.Name, Type: caps.Type, VendorID: ID(caps.VendorID), DeviceID: ID(caps.DeviceID),
		Driver: caps.DriverName, DriverVersion: caps.DriverInfo, Vulkan: caps.APIVersion, Family: chips.Family(caps),
	}
}

// String names device and driver.
func (r *Record) String() string { return fmt.Sprintf("%s, driver %s", r.Device, r.DriverVersion) }

var notInNames = regexp.MustCompile(`[^a-z0-9.]+`)

// FileName returns the name of the record's file, from device and driver, such as
// nvidia-h200-580.159.04.json.
func (r *Record) FileName() string {
	name := notInNames.ReplaceAllString(strings.ToLower(r.Device+" "+r.DriverVersion), "-")
	return strings.Trim(name, "-.") + ".json"
}

// Ran counts a case of the fixed suite, whose kernel is "", or a random problem of a kernel, for a
// module that it ran.
func (r *Record) Ran(ran vk.ModuleInfo, kernel string, right bool) {
	m := r.module(ran.Name)
	if m == nil {
		r.Modules = append(r.Modules, Module{Name: ran.Name, SHA256: spirv.Hash(ran.SPIRV), Random: map[string]int{}})
		m = &r.Modules[len(r.Modules)-1]
	}
	switch {
	case !right:
		m.Wrong++
	case kernel == "":
		m.Fixed++
	default:
		m.Random[kernel]++
	}
	m.conclude()
}

// Problem counts a random problem, right or wrong.
func (r *Record) Problem(kernel string, seed uint64, right bool) {
	i := slices.IndexFunc(r.Random, func(x Random) bool { return x.Kernel == kernel && x.Seed == seed })
	if i < 0 {
		i, r.Random = len(r.Random), append(r.Random, Random{Kernel: kernel, Seed: seed})
	}
	r.Random[i].Problems++
	if !right {
		r.Random[i].Failed++
	}
}

// At makes r a run of the program at a commit.
func (r *Record) At(commit string) *Record {
	for i := range r.Modules {
		r.Modules[i].Commit = commit
	}
	for i := range r.Random {
		r.Random[i].Commit = commit
	}
	return r
}

// sort brings a record into the order of its text.
func (r *Record) sort() {
	slices.SortStableFunc(r.Modules, func(a, b Module) int { return cmp.Compare(a.Name, b.Name) })
	slices.SortStableFunc(r.Random, func(a, b Random) int {
		return cmp.Or(cmp.Compare(a.Kernel, b.Kernel), cmp.Compare(a.Seed, b.Seed))
	})
}

func (m *Module) conclude() {
	m.Verdict = Pass
	if m.Wrong > 0 {
		m.Verdict = Fail
	}
}

// ran returns how many cases and problems were right.
func (m *Module) ran() int {
	n := m.Fixed
	for _, problems := range m.Random {
		n += problems
	}
	return n
}

// module returns a module by its name, or nil.
func (r *Record) module(name string) *Module {
	i := slices.IndexFunc(r.Modules, func(m Module) bool { return m.Name == name })
	if i < 0 {
		return nil
	}
	return &r.Modules[i]
}

// Committed returns the modules of package shaders as they stand, with name and hash.
func Committed() ([]Module, error) {
	var all Record
	for _, v := range shaders.Variants() {
		m, err := shaders.Get(v.Kernel, v.Type)
		if err != nil {
			return nil, fmt.Errorf("conformance: %w", err)
		}
		all.Ran(vk.ModuleInfo{Name: m.Name, SPIRV: m.SPIRV}, "", true)
	}
	all.sort()
	return all.Modules, nil
}

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
	fmt.Fprintf(&b, "| device | driver | modules proven, of %d | wrong | random problems passed | failed |\n| --- | --- | --- | --- | --- | --- |\n", len(modules))
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
