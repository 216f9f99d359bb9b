//go:build !race

package attntest

// raceDetector says whether this build has the race detector, which makes
// arithmetic ten times slower.
const raceDetector = false
