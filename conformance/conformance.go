// Package conformance has the records of what passed on which device, a file for each device and
// driver. README.md says what their fields are; `flashvk selftest --record conformance/` writes them.
package conformance

import "embed"

// Records are the files. The pattern also matches README.md, without which a folder that has no
// record yet would not compile.
//
//go:embed *.[jm]*[nd]
var Records embed.FS
