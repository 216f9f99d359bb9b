// Package chips knows what kernels need of a device beyond its capabilities: the family that
// tuning tables name, and the shapes and layouts of its matrices.
package chips

import (
	"cmp"
	"slices"
	"strings"

	"github.com/flashvk/flashvk/vk"
)

// Families are groups of devices that the rows of tuning tables speak of.
//
//	hopper                H100, H200, H800, GH200
//	ampere                NVIDIA's large Ampere chip: A100, A800, A30
//	ampere-rtx            its small ones: RTX 30, RTX A…, A2, A10, A16, A40
//	ada                   RTX 40, RTX … Ada, L4, L40
//	blackwell-rtx         RTX 50, RTX PRO … Blackwell
//	rdna3, rdna4          AMD's Radeon RX 7000 and 9000 and what is built like them
//	xe2                   Intel's Arc B, Lunar Lake and what follows
//	lavapipe              Mesa's software driver
//
// Any other device has no family and gets the rows for all.

// PCI vendors.
const (
	VendorAMD    = 0x1002
	VendorNVIDIA = 0x10de
	VendorIntel  = 0x8086
)

// familyNames has the words in a device's name that say its family. The first match counts:
// "A100" comes before "A10".
var familyNames = []struct {
	vendor uint32
	name   string
	family string
}{
	{vendor: VendorNVIDIA, name: "H100", family: "hopper"},
	{vendor: VendorNVIDIA, name: "H200", family: "hopper"}, // and GH200
	{vendor: VendorNVIDIA, name: "H800", family: "hopper"},
	{vendor: VendorNVIDIA, name: "GeForce RTX 50", family: "blackwell-rtx"},
	{vendor: VendorNVIDIA, name: "Blackwell", family: "blackwell-rtx"}, // RTX PRO 6000 Blackwell
	{vendor: VendorNVIDIA, name: "GeForce RTX 40", family: "ada"},
	{vendor: VendorNVIDIA, name: " Ada", family: "ada"}, // RTX 4000 SFF Ada; a plain Quadro RTX 4000 is older
	{vendor: VendorNVIDIA, name: "NVIDIA L4", family: "ada"},
	{vendor: VendorNVIDIA, name: "GeForce RTX 30", family: "ampere-rtx"},
	{vendor: VendorNVIDIA, name: "RTX A", family: "ampere-rtx"},
	{vendor: VendorNVIDIA, name: "A100", family: "ampere"},
	{vendor: VendorNVIDIA, name: "A800", family: "ampere"},
	{vendor: VendorNVIDIA, name: "NVIDIA A30", family: "ampere"},
	{vendor: VendorNVIDIA, name: "NVIDIA A10", family: "ampere-rtx"},
	{vendor: VendorNVIDIA, name: "NVIDIA A16", family: "ampere-rtx"},
	{vendor: VendorNVIDIA, name: "NVIDIA A2", family: "ampere-rtx"},
	{vendor: VendorNVIDIA, name: "NVIDIA A40", family: "ampere-rtx"},

	// RADV adds the chip's name in brackets, the other drivers do not.
	{vendor: VendorAMD, name: "NAVI4", family: "rdna4"},
	{vendor: VendorAMD, name: "GFX12", family: "rdna4"},
	{vendor: VendorAMD, name: "Radeon RX 90", family: "rdna4"},
	{vendor: VendorAMD, name: "NAVI3", family: "rdna3"},
	{vendor: VendorAMD, name: "GFX11", family: "rdna3"}, // 3.5 too: Strix
	{vendor: VendorAMD, name: "STRIX", family: "rdna3"},
	{vendor: VendorAMD, name: "PHOENIX", family: "rdna3"},
	{vendor: VendorAMD, name: "Radeon RX 7", family: "rdna3"},
	{vendor: VendorAMD, name: "Radeon PRO W7", family: "rdna3"},
	{vendor: VendorAMD, name: "Radeon 7", family: "rdna3"}, // 740M to 780M, integrated
	{vendor: VendorAMD, name: "Radeon 8", family: "rdna3"},
}

// A FamilyName is a family with the name of its vendor.
type FamilyName struct{ Vendor, Family string }

// Families lists the families of GPUs, by vendor, to compare with the devices that have records.
func Families() []FamilyName {
	list := []FamilyName{{"Intel", "xe2"}}
	for _, f := range familyNames {
		list = append(list, FamilyName{map[uint32]string{VendorAMD: "AMD", VendorNVIDIA: "NVIDIA"}[f.vendor], f.family})
	}
	slices.SortFunc(list, func(a, b FamilyName) int {
		return cmp.Or(cmp.Compare(a.Vendor, b.Vendor), cmp.Compare(a.Family, b.Family))
	})
	return slices.Compact(list)
}

// Lavapipe reports whether the device is Mesa's software driver.
func Lavapipe(caps *vk.Caps) bool {
	const driverMesaLLVMPipe = 13 // VK_DRIVER_ID_MESA_LLVMPIPE
	return caps.DriverID == driverMesaLLVMPipe
}

// Family names the group of devices for the rows of tuning tables, or returns "". It is a guess
// from the driver's description of the device.
func Family(caps *vk.Caps) string {
	if Lavapipe(caps) {
		return "lavapipe"
	}
	// Intel's names are marketing. The least subgroup tells the generations apart: 16 since Xe2,
	// 8 before. llama.cpp uses it, too.
	if caps.VendorID == VendorIntel && caps.MinSubgroupSize == 16 {
		return "xe2"
	}
	for i := range familyNames {
		if f := &familyNames[i]; f.vendor == caps.VendorID && strings.Contains(caps.Name, f.name) {
			return f.family
		}
	}
	return ""
}
