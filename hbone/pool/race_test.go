//go:build race

package pool

// modelRuns is the default of -pool.seeds. With the race detector it is low: the one of
// go 1.26 crashes (StackDepot) when very many timers have fired in bubbles of synctest.
// The rest runs without it, with the debug build.
const modelRuns = 12
