package bench

import (
	"math"
	"strconv"
)

// FormatTime returns ns nanoseconds with four digits, as in 1.234 ms.
func FormatTime(ns float64) string {
	switch {
	case ns < 999.95:
		return digits(ns) + " ns"
	case ns < 999.95e3:
		return digits(ns/1e3) + " µs"
	case ns < 999.95e6:
		return digits(ns/1e6) + " ms"
	}
	return digits(ns/1e9) + " s"
}

// FormatSI returns x with four digits and a decimal prefix, as in
// 440.1 TFLOP/s.
func FormatSI(x float64, unit string) string {
	prefixes := []string{"", "k", "M", "G", "T", "P"}
	i := 0
	for ; i < len(prefixes)-1 && math.Abs(x) >= 999.95; i++ {
		x /= 1000
	}
	return digits(x) + " " + prefixes[i] + unit
}

// digits returns x with four significant digits if it is below 1000, else
// without a fraction.
func digits(x float64) string {
	a := math.Abs(x)
	switch {
	case a == 0:
		return "0"
	case a < 9.9995:
		return strconv.FormatFloat(x, 'f', 3, 64)
	case a < 99.995:
		return strconv.FormatFloat(x, 'f', 2, 64)
	case a < 999.95:
		return strconv.FormatFloat(x, 'f', 1, 64)
	}
	return strconv.FormatFloat(x, 'f', 0, 64)
}

// FormatBytes returns n bytes with a binary prefix, as in 48 KiB.
func FormatBytes(n uint64) string {
	prefixes := []string{"B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"}
	x, i := float64(n), 0
	for ; i < len(prefixes)-1 && x >= 1024; i++ {
		x /= 1024
	}
	return strconv.FormatFloat(math.Round(x*10)/10, 'f', -1, 64) + " " + prefixes[i]
}
