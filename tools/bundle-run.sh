#!/usr/bin/env bash
# run.sh of a flashvk bundle (tools/bundle-run.sh): see README.md beside it.
set -uo pipefail
cd "$(dirname "$0")"
here=$PWD
out=${OUT:-$here/out}
mkdir -p "$out"
out=$(cd "$out" && pwd)
failed=0

# limited SECONDS PROGRAM… runs a program, which is killed when its time is over.
limited() {
	local seconds=$1
	shift
	timeout --kill-after=10 "$seconds" ${RUN:+"$RUN"} "$@"
}

# run_tests PATTERN runs every test (and example) that matches in a process of its own.
run_tests() {
	local pattern=$1 binary package names name log result status start passed=0 skipped=0 bad=0
	mkdir -p "$out/tests"
	: >"$out/tests.txt"
	while IFS= read -r binary; do
		package=${binary#tests/}
		package=${package%/*}
		if ! names=$(cd "${binary%/*}" && limited 60 "./${binary##*/}" -test.list . 2>&1); then
			echo "FAIL  $package: cannot be listed: ${names##*$'\n'}" | tee -a "$out/tests.txt"
			bad=$((bad + 1))
			continue
		fi
		for name in $(grep -E '^(Test|Example)' <<<"$names"); do
			[[ $package.$name =~ $pattern ]] || continue
			log=$out/tests/${package//\//_}.$name.txt
			start=$SECONDS
			(cd "${binary%/*}" && limited "${TEST_TIMEOUT:-600}" "./${binary##*/}" -test.v -test.run "^$name\$" -test.timeout 0) >"$log" 2>&1 </dev/null
			status=$?
			if [[ $status == 124 || $status == 137 ]]; then
				result="FAIL  $package.$name: no end after $((SECONDS - start)) s"
				bad=$((bad + 1))
			elif [[ $status != 0 ]]; then
				result="FAIL  $package.$name: exit status $status, see $log"
				bad=$((bad + 1))
			elif grep -q "^--- SKIP: $name " "$log"; then
				result="skip  $package.$name: $(grep -m1 -E '^ +[a-z0-9_]+\.go:[0-9]+: ' "$log" | sed 's/^ *[^ ]* //')"
				skipped=$((skipped + 1))
			else
				result="ok    $package.$name $((SECONDS - start)) s$(grep -cE '^ +--- SKIP: ' "$log" | sed 's/^0$//; s/..*/, & parts skipped/')"
				passed=$((passed + 1))
			fi
			echo "$result" | tee -a "$out/tests.txt"
		done
	done < <(find tests -name '*.test' -type f | sort)
	echo "tests: $passed passed, $skipped skipped, $bad failed" | tee -a "$out/tests.txt"
	[[ $bad == 0 && $((passed + skipped)) -gt 0 ]] || failed=1
}

# run_bench FORMAT FILE measures one row of the table after another into a file.
run_bench() {
	local format=$1 file=$out/$2 row size dtype causal
	local -a rows=() device=()
	[[ -z ${FLASHVK_DEVICE:-} ]] || device=(--device "$FLASHVK_DEVICE")
	for size in '--batch 4 --heads 16 --seqlen 4096 --headdim 128' '--batch 4 --heads 32 --seqlen 4096 --headdim 64'; do
		for dtype in float16 bfloat16; do
			for causal in '' ' --causal'; do
				rows+=("$size --dtype $dtype$causal")
			done
		done
	done
	rows+=('--batch 1 --heads 16 --seqlen 16384 --headdim 128 --dtype bfloat16')
	rows+=('--batch 2 --heads 8 --kv-heads 4 --seqlen 1024 --headdim 128 --dtype bfloat16 --causal')
	if [[ -n ${BENCH_ROWS:-} ]]; then
		mapfile -t rows <<<"$BENCH_ROWS"
	fi
	: >"$file"
	for row in "${rows[@]}"; do
		echo "== flashvk bench attention $row" >&2
		# shellcheck disable=SC2086 # a row is words
		limited "${BENCH_TIMEOUT:-300}" ./flashvk bench attention $row --impl "${BENCH_IMPL:-coopmat2,coopmat}" \
			"${device[@]}" --format "$format" </dev/null 2>"$out/bench.err" | tee -a "$file"
		if [[ ${PIPESTATUS[0]} != 0 ]]; then
			echo "FAIL  flashvk bench attention $row: $(tail -n1 "$out/bench.err")" >&2
			failed=1
		fi
	done
	rm -f "$out/bench.err"
}

if ! limited 60 ./flashvk devices >"$out/devices.txt" 2>&1; then
	cat "$out/devices.txt" >&2
	exit 1
fi
cat "$out/devices.txt"
case ${1:-all} in
test) run_tests "${2:-.}" ;;
bench) run_bench table bench.txt ;;
benchfmt) run_bench benchfmt bench.benchfmt ;;
all)
	run_tests .
	run_bench table bench.txt
	;;
*)
	echo "usage: ./run.sh [all|test [PATTERN]|bench|benchfmt]" >&2
	exit 2
	;;
esac
exit $failed
