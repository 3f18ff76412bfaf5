# A probe that says nothing gives its token back, and the next one may go.
0s begin a                           | healthy health=1.000 failures=0 ejections=0
0s end a failure                     | healthy health=0.700 failures=1 ejections=0
0s begin b                           | healthy health=0.700 failures=1 ejections=0
0s end b failure                     | ejected health=0.490 failures=2 ejections=1 until=1m0s unusable <ejected>
60s begin probe                      | probing health=0.490 failures=2 ejections=1 until=1m0s unusable
60s show                             | probing health=0.490 failures=2 ejections=1 until=1m0s unusable
61s end probe neutral                | probing health=0.490 failures=2 ejections=1 until=1m0s
61s begin probe2                     | probing health=0.490 failures=2 ejections=1 until=1m0s unusable
62s end probe2 success               | healthy health=0.643 failures=0 ejections=1 <readmitted>
