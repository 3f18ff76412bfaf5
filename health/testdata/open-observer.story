# Evidence of the far side ends an ejection long before its time.
0s begin a                           | healthy health=1.000 failures=0 ejections=0
0s end a failure                     | healthy health=0.700 failures=1 ejections=0
0s begin b                           | healthy health=0.700 failures=1 ejections=0
0s end b failure                     | ejected health=0.490 failures=2 ejections=1 until=1m0s unusable <ejected>
2s readmit                           | healthy health=0.490 failures=0 ejections=1 <readmitted>
3s begin c                           | healthy health=0.490 failures=0 ejections=1
3s end c failure                     | healthy health=0.343 failures=1 ejections=1
3s begin d                           | healthy health=0.343 failures=1 ejections=1
3s end d failure                     | ejected health=0.240 failures=2 ejections=2 until=2m3s unusable <ejected>
