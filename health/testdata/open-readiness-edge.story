# Discovery saw the pod turn ready: one probe may go at once. A probe that
# fails pays the next price all the same.
0s begin a                           | healthy health=1.000 failures=0 ejections=0
0s end a failure                     | healthy health=0.700 failures=1 ejections=0
0s begin b                           | healthy health=0.700 failures=1 ejections=0
0s end b failure                     | ejected health=0.490 failures=2 ejections=1 until=1m0s unusable <ejected>
10s allow-probe                      | probing health=0.490 failures=2 ejections=1 until=10s
10s begin probe                      | probing health=0.490 failures=2 ejections=1 until=10s unusable
10s end probe failure                | ejected health=0.343 failures=2 ejections=2 until=2m10s unusable <ejected>
20s allow-probe                      | probing health=0.343 failures=2 ejections=2 until=20s
20s begin probe2                     | probing health=0.343 failures=2 ejections=2 until=20s unusable
20s end probe2 success               | healthy health=0.540 failures=0 ejections=2 <readmitted>
21s allow-probe                      | healthy health=0.540 failures=0 ejections=2
